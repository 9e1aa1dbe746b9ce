"""Templates of pages, beside the code that fills them: every text from files is escaped."""

from jinja2 import Environment, PackageLoader, StrictUndefined


def render_template(name: str, **values: object) -> str:
    """Return the page that a template makes of values.

    Args:
        name: Of the file within `sims`, as `report/report.html.jinja`.
        values: By the names that the template has for them.

    Returns:
        HTML.
    """
    environment = Environment(
        autoescape=True,
        loader=PackageLoader("sims", "."),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(name).render(**values)
