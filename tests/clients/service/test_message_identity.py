"""Identity of messages: equal only where no application can tell two apart."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clients.service.message_identity import identify_message, join_parts

JSON = "application/json"
FORM = "multipart/form-data; boundary="
PART = b'Content-Disposition: form-data; name="file"; filename="a.png"\r\n\r\n'
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda children: st.lists(children) | st.dictionaries(st.text(), children),
    max_leaves=20,
)


def identify(body: bytes, *types: str, path: str = "/a", query: bytes = b"") -> bytes:
    headers = [(b"content-type", kind.encode()) for kind in types]
    return identify_message({"path": path, "query_string": query, "headers": headers}, body)


def form(boundary: str, *parts: bytes, end: bytes = b"--\r\n") -> bytes:
    line = b"--" + boundary.encode()
    return b"".join(line + b"\r\n" + part + b"\r\n" for part in parts) + line + end


@given(VALUES, VALUES)
def test_json_is_compared_as_it_is_parsed(first: Any, second: Any) -> None:
    """Spelled in any way; two values are different messages."""
    texts = [json.dumps(first), json.dumps(first, indent=2), json.dumps(first, ensure_ascii=False)]
    texts[2] = texts[2].replace("\x7f", "\\u007f")
    assert len({identify(text.encode("utf-8", "surrogatepass"), JSON) for text in texts}) == 1
    is_same = json.dumps(first) == json.dumps(second)
    assert (
        identify(texts[0].encode(), JSON) == identify(json.dumps(second).encode(), JSON)
    ) is is_same


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (b"12", b"1 2"),
        (b'{"a": 1}', b'{"a": 1.0}'),
        (b'{"a": 1, "b": 2}', b'{"b": 2, "a": 1}'),
        (b'{"a": 1, "a": 2}', b'{"a": 2}'),
        (b'["a b"]', b'["ab"]'),
        (b'["a", "b"]', b'["a\\", \\"b"]'),
        (b"[NaN]", b"[null]"),
        (b"[1e400]", b"[Infinity]"),
        (b"[" + b"9" * 5000 + b"]", b"[ " + b"9" * 5000 + b"]"),
        (b"[" * 10**5 + b"]" * 10**5, b"[" * 10**5 + b" " + b"]" * 10**5),
        (b"\xef\xbb\xbf[1]", b"[1]"),
        (b'["\xff"]', b'["\xfe"]'),
        ("[1]".encode("utf-16"), "[ 1]".encode("utf-16")),
        (b"", b" "),
    ],
)
def test_what_an_application_may_tell_apart_is_another_message(first: bytes, second: bytes) -> None:
    """Also what Python's parser does not take: it is compared byte by byte."""
    assert identify(first, JSON) != identify(second, JSON)
    assert identify(first, JSON) == identify(first, JSON)


def test_forms_are_compared_by_their_parts() -> None:
    """In order, with their headers; the boundary may be any that the content does not hold."""
    one, other = PART + b"pixels", PART.replace(b"a.png", b"b.png") + b"pixels"
    base = identify(form("abc", one), FORM + "abc")
    assert (
        base == identify(form("x-y", one), FORM + "x-y") == identify(form("z", one), f'{FORM}"z"')
    )
    different = [
        identify(form("abc", other), FORM + "abc"),
        identify(form("abc", PART + b"pixel"), FORM + "abc"),
        identify(form("abc", one, one), FORM + "abc"),
        identify(form("abc", one, end=b"--"), FORM + "abc"),
        identify(form("abc", one), FORM + "abcd"),
        identify(form("abc", one), FORM + "abc; charset=utf-8"),
        identify(b"preamble" + form("abc", one), FORM + "abc"),
        identify(form("abc", one) + b"epilogue", FORM + "abc"),
        identify(form("abc", PART + b"pixels--abc"), FORM + "abc"),
        identify(form("abc", PART + b"pixels\n--abc\nmore"), FORM + "abc"),
        identify(form("abc", b"no header"), FORM + "abc"),
        identify(form("abc", one), FORM + "abc", FORM + "x"),
        identify(form("abc", one)),
    ]
    assert len({base, *different}) == len(different) + 1
    assert identify(form("abc", one, other), FORM + "abc") != identify(
        form("abc", other, one), FORM + "abc"
    )


def test_other_types_are_compared_byte_by_byte() -> None:
    """And address, query and each header of the type count."""
    identities = [
        identify(b"[1]", "text/plain"),
        identify(b"[ 1]", "text/plain"),
        identify(b"[ 1]", "application/json; charset=utf-16"),
        identify(b"[1]", "application/json; charset=utf-16"),
        identify(b"[1]", JSON),
        identify(b"[1]", JSON, JSON),
        identify(b"[1]", JSON, "text/plain"),
        identify(b"[1]"),
        identify(b"[1]", JSON, path="/b"),
        identify(b"[1]", JSON, query=b"crop=1"),
        join_parts([b"[1]"]),
    ]
    assert len({*identities}) == len(identities)
