"""Draw the diagrams of the concept pages: `python docs/figures/draw_diagrams.py`.

They are SVG whose boxes have a ground of their own, so that they read on light and dark pages.
"""

from math import exp
from pathlib import Path

FOLDER = Path(__file__).parent
INK, GREY, LINE = "#1b1f24", "#4a5159", "#7d8590"
BLUE, RED, GREEN, PAPER = "#dbe9fb", "#fbe0de", "#dcf1e0", "#f3f4f6"


def draw_svg(width: int, height: int, title: str, parts: list[str]) -> str:
    """Return a drawing with its title for screen readers."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'role="img" aria-label="{title}" font-family="system-ui, sans-serif" font-size="14">\n'
        f"<title>{title}</title>\n"
        f'<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" '
        f'markerHeight="8" orient="auto"><path d="M0 0L8 4L0 8z" fill="{LINE}"/></marker></defs>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def draw_box(x: int, y: int, width: int, height: int, fill: str, lines: list[str]) -> str:
    """Return a box; its first line is bold."""
    shape = (
        f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="8" fill="{fill}" '
        f'stroke="{LINE}"/>'
    )
    top = y + height / 2 - 9 * (len(lines) - 1) + 5
    texts = [
        f'<text x="{x + width / 2:g}" y="{top + 18 * row:g}" text-anchor="middle" '
        f'fill="{GREY if row else INK}"{"" if row else FONT}>{line}</text>'
        for row, line in enumerate(lines)
    ]
    return "\n".join([shape, *texts])


FONT = ' font-weight="600"'


def draw_arrow(x: float, y: float, to_x: float, to_y: float) -> str:
    """Return an arrow from one point to another."""
    return (
        f'<path d="M{x:g} {y:g}L{to_x:g} {to_y:g}" stroke="{LINE}" stroke-width="2" fill="none" '
        f'marker-end="url(#tip)"/>'
    )


def draw_split_inference() -> str:
    """Return who holds what, what is sent, and who looks at it."""
    parts = [
        draw_box(10, 100, 230, 120, BLUE, ["Device", "image x", "encoder f, key of the noise"]),
        draw_box(520, 100, 230, 120, GREEN, ["Service", "head g, sampled S times", "ledger"]),
        draw_arrow(240, 131, 519, 131),
        draw_arrow(520, 189, 241, 189),
        draw_box(255, 10, 250, 56, RED, ["Reader of the message", "the service, the network"]),
        draw_arrow(380, 111, 380, 68),
        draw_box(255, 254, 250, 56, RED, ["Reader of the answer", "whoever gets to see it"]),
        draw_arrow(380, 209, 380, 252),
        draw_box(300, 111, 160, 40, PAPER, ["z̃ = f(x) + σξ"]),
        draw_box(300, 169, 160, 40, PAPER, ["private answer, ε"]),
    ]
    return draw_svg(
        760, 320, "A device sends noisy features to a service and receives a noisy answer.", parts
    )


def weigh_images(centres: tuple[float, ...], sigma: float, message: float) -> list[float]:
    """Return the probability of each image given a message, by Bayes' rule."""
    weights = [exp(-((message - centre) ** 2) / (2 * sigma**2)) for centre in centres]
    return [weight / sum(weights) for weight in weights]


def draw_bayes() -> str:
    """Return the laws of five images' messages, one message, and what Bayes' rule gives."""
    centres, sigma, message = (90.0, 250.0, 335.0, 400.0, 610.0), 55.0, 362.0
    names = ("x₁", "x₂", "x₃", "x₄", "x₅")
    parts = [f'<rect x="0" y="0" width="700" height="330" rx="8" fill="{PAPER}"/>']
    for centre in centres:
        points = " ".join(
            f"{x} {190 - 130 * exp(-((x - centre) ** 2) / (2 * sigma**2)):.1f}"
            for x in range(10, 691, 5)
        )
        parts.append(f'<polyline points="{points}" fill="none" stroke="#3b73c8" stroke-width="2"/>')
    parts.append(f'<path d="M10 190H690" stroke="{LINE}"/>')
    parts.append(f'<path d="M{message:g} 40V190" stroke="#c0392b" stroke-width="2"/>')
    parts.append(
        f'<text x="{message:g}" y="30" text-anchor="middle" fill="#c0392b">message z̃</text>'
    )
    shares = weigh_images(centres, sigma, message)
    for name, centre, share in zip(names, centres, shares, strict=True):
        height = 80 * share
        parts += [
            f'<text x="{centre:g}" y="208" text-anchor="middle" fill="{INK}">{name}</text>',
            f'<rect x="{centre - 14:g}" y="{300 - height:.1f}" width="28" height="{height:.1f}" '
            f'fill="#3b73c8"/>',
            f'<text x="{centre:g}" y="320" text-anchor="middle" fill="{GREY}">{share:.2f}</text>',
        ]
    return draw_svg(
        700, 330, "Five images, one message, and the probability of each image given it.", parts
    )


DIAGRAMS = {"split-inference": draw_split_inference, "bayes-rule": draw_bayes}

if __name__ == "__main__":
    for name, draw in DIAGRAMS.items():
        (FOLDER / f"{name}.svg").write_text(draw())
