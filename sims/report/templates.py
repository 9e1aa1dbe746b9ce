"""Templates of pages: every text from files is escaped."""

from importlib import resources

from jinja2 import Environment, FunctionLoader, StrictUndefined


def read_template(name: str) -> str:
    """Return a template that lies beside this file."""
    return resources.files("sims.report").joinpath(name).read_text(encoding="utf-8")


def render_template(name: str, **values: object) -> str:
    """Return the page that a template makes of values.

    Args:
        name: Of the file.
        values: By the names that the template has for them.

    Returns:
        HTML.
    """
    environment = Environment(
        autoescape=True,
        loader=FunctionLoader(read_template),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(name).render(**values)
