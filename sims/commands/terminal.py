"""Output that no terminal's encoding ends."""

import codecs
import io
import sys

PLAIN_SIGNS = {
    "–": "-", "−": "-", "…": "...", "±": "+-", "×": "x", "²": "^2", "≤": "<=", "≥": ">=", "≶": "<>",
    "σ": "sigma", "ε": "epsilon", "λ": "lambda", "γ": "gamma", "Δ": "delta",
    "\N{NO-BREAK SPACE}": " ",
}  # fmt: skip
"""Signs that fedcel prints, and how they are written in ASCII."""


def print_in_any_encoding() -> None:
    """Let signs that a terminal does not have be printed as others, in the place of an error."""
    codecs.register_error("fedcel", replace_signs)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="fedcel")


def replace_signs(error: UnicodeError) -> tuple[str, int]:
    """Replace what an encoding lacks: by signs of ASCII, else by Python's escapes."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lacking = error.object[error.start : error.end]
    plain = [PLAIN_SIGNS.get(c) or c.encode("ascii", "backslashreplace").decode() for c in lacking]
    return "".join(plain), error.end
