"""Formulas as MathML, which browsers set themselves: nothing is loaded from elsewhere."""

import html
from typing import Any, Literal

from latex2mathml.converter import convert
from sphinx.application import Sphinx


def convert_formula(tex: str, display: Literal["inline", "block"] = "inline") -> str:
    """Return a formula as MathML; a command that the converter would show as text is refused."""
    formula = convert(tex, display=display)
    if "\\" in html.unescape(formula):
        raise ValueError(f"formula {tex!r} has a command that is not converted; write it otherwise")
    return formula


def draw_inline(self: Any, node: Any) -> None:
    """Set a formula within a line."""
    self.body.append(convert_formula(node.astext()))
    raise skip_node()


def draw_display(self: Any, node: Any) -> None:
    """Set a formula on lines of its own; it can be scrolled to on a narrow screen."""
    formula = convert_formula(node.astext(), display="block")
    self.body.append(
        f'<div class="formula" tabindex="0" aria-label="{html.escape(node.astext())}">'
    )
    self.body.append(f"{formula}</div>")
    raise skip_node()


def skip_node() -> Exception:
    """Return what tells the writer that a node is done."""
    from docutils.nodes import SkipNode

    return SkipNode()


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the renderer."""
    app.add_html_math_renderer("mathml", (draw_inline, None), (draw_display, None))
    return {"parallel_read_safe": True}
