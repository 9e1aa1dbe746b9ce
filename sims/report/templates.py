"""Templates of pages, beside the code that fills them: every text from files is escaped."""

from jinja2 import Environment, PackageLoader, StrictUndefined


def render_template(name: str, **values: object) -> str:
    """Render a template of `sims`, such as `report/report.html.jinja`, with these values."""
    environment = Environment(
        autoescape=True,
        loader=PackageLoader("sims", "."),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(name).render(**values)
