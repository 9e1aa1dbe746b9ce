"""Identity of a request: equal for requests that no application can tell apart by their content.

What a sender's library may choose at will counts for nothing: white space between the tokens of
JSON, the boundary of a form. All else does.
"""

import json
import re
from collections.abc import Sequence

from starlette.types import Scope

JSON_TYPE = re.compile(rb"application/json(?:; *charset=utf-8)?", re.IGNORECASE)
JSON_STRING = re.compile(r'("[^"\\]*+(?:\\.[^"\\]*+)*+")')
FORM_TYPE = re.compile(
    rb'(multipart/form-data; *boundary=)("?)([0-9A-Za-z\'()+_,./:=?-]{1,70})\2', re.IGNORECASE
)
FORM_ENDS = (b"--", b"--\r\n")


def identify_message(scope: Scope, body: bytes) -> bytes:
    """Return all that decides the application's answer to a request, see `identify_content`."""
    types = [value for name, value in scope["headers"] if name.lower() == b"content-type"]
    content = identify_content(types, body)
    return join_parts([scope["path"].encode(), scope["query_string"], *content])


def identify_content(types: Sequence[bytes], body: bytes) -> list[bytes]:
    """Return the parts that identify a body; different where an application may tell two apart.

    Args:
        types: All headers `Content-Type`.
        body: Valid JSON in UTF-8 is compared without the white space between its tokens, and
            strings as they are parsed; spelling of numbers and order of fields count. A form by its
            parts, with their headers, in order. Anything else, also what is damaged, byte by byte.
    """
    raw = [b"bytes", *types, body]
    if len(types) != 1:
        return raw
    if JSON_TYPE.fullmatch(types[0]):
        try:
            return [b"json", types[0], canonicalise_json(body)]
        except (ValueError, RecursionError):
            return raw
    form_type = FORM_TYPE.fullmatch(types[0])
    if form_type is None:
        return raw
    parts = body.split(b"--" + form_type[3])
    is_whole = not parts[0] and parts[-1] in FORM_ENDS and len(parts) > 2
    if is_whole and all(is_form_part(part) for part in parts[1:-1]):
        return [b"form", form_type[1], *parts]
    return raw


def canonicalise_json(body: bytes) -> bytes:
    """Return JSON without its white space and escapes; ValueError, RecursionError on others."""
    text = body.decode("utf-8")
    json.loads(text)
    between, strings = JSON_STRING.split(text)[::2], JSON_STRING.findall(text)
    parsed = json.loads(f"[{','.join(strings)}]")
    return json.dumps([["".join(tokens.split()) for tokens in between], parsed]).encode()


def is_form_part(part: bytes) -> bool:
    """Whether this is a part of a form: a line's end, headers, an empty line, content."""
    return part.startswith(b"\r\n") and part.endswith(b"\r\n") and b"\r\n\r\n" in part[:-2]


def join_parts(parts: Sequence[bytes]) -> bytes:
    """Return each part with its length before it."""
    return b"".join(len(part).to_bytes(8, "big") + part for part in parts)
