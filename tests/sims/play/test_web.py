"""The playground over HTTP: its numbers are the library's, and nobody else is let in."""

from dataclasses import replace
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import PIL.Image
import pytest
import torch

import fedcel
from fedcel.data import Images
from sims.commands.main import main
from sims.play import FACTORS, MESSAGE_COUNTS
from sims.report.templates import render_template
from tests.sims.play.conftest import Served

BLANK = torch.zeros(1, 8, 8).tolist()


def picture(mode: str, size: tuple[int, int]) -> bytes:
    file = BytesIO()
    PIL.Image.new(mode, size, 128).save(file, "png")
    return file.getvalue()


def test_the_page_is_whole_and_needs_no_network(served: Served) -> None:
    """Nothing is loaded from elsewhere, and the browser is told to load nothing."""
    reply = served.client.get("/")
    assert reply.status_code == 200 and "text/html" in reply.headers["content-type"]
    assert "http://" not in reply.text and "https://" not in reply.text
    policy = reply.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "connect-src 'self'" in policy


def test_undefended_encoders_come_first_and_look_as_in_the_report(served: Served) -> None:
    """`none` is second in the bench: its colour and marker are the second ones."""
    state = served.client.get("/api/state").json()
    assert state["title"] == "A pair" and state["shape"] == [1, 8, 8]
    assert [column["label"] for column in state["columns"]] == ["none", "cluster"]
    assert [column["colour"] for column in state["columns"]] == ["#d55e00", "#0072b2"]
    assert [column["marker"] for column in state["columns"]] == ["■", "●"]
    assert 1.0 in state["factors"] and state["messages"][0] == 1 and len(state["gallery"]) == 12


def test_bits_of_an_image_of_ones_own_are_those_among_one_more(served: Served) -> None:
    """Drawn pixels, said to be a 3."""
    drawn = torch.zeros(1, 8, 8)
    drawn[0, 2:6, 3] = 1.0
    reply = served.look(pixels=drawn.tolist(), label=3)
    assert reply["image"] | {"pixels": "", "values": []} == {
        "pixels": "", "values": [], "test": None, "label": 3, "is-label-assumed": False,
    }  # fmt: skip
    for column, result in zip(served.playground.columns, reply["columns"], strict=True):
        x, y = column.candidates
        whole = fedcel.measure_leakage(
            column.net.encoder,
            torch.cat([x, drawn[None]]),
            torch.cat([y, torch.tensor([3])]),
            noise=column.net.cut.sigma,
            draws=300,
        )
        assert whole.beyond is not None
        bits = result["bits"]
        assert bits["information-cap"] == pytest.approx(np.log2(len(y) + 1))
        allowed = 2 * bits["beyond-half-width"] + 0.01
        assert abs(bits["beyond-label"] - float(whole.beyond[-1])) < allowed
    assert reply["columns"][0]["guesses"][0]["is-right"]


def test_bits_follow_the_sliders(served: Served) -> None:
    """More messages tell more, more noise tells less, the defended encoder tells less."""

    def bits(place: int, **sliders: Any) -> float:
        return float(served.look(test=4, **sliders)["columns"][place]["bits"]["information"])

    for place in (0, 1):
        by_messages = [bits(place, messages=count) for count in MESSAGE_COUNTS]
        assert by_messages[-1] > by_messages[0]
        assert all(b > a - 0.1 for a, b in pairwise(by_messages))
        assert bits(place, factor=FACTORS[0]) > bits(place) > bits(place, factor=FACTORS[-1])
    assert bits(0) > bits(1) + 1


def test_what_is_rebuilt_is_near_where_there_is_little_noise(served: Served) -> None:
    """Both attackers do better with many messages in little noise than in much."""
    for name in ("decoder", "kernel-ridge"):
        errors = {
            factor: np.mean(
                [
                    served.look(test=i, factor=factor)["columns"][0]["rebuilt"][name]["mse"]
                    for i in range(8)
                ]
            )
            for factor in (FACTORS[0], FACTORS[-1])
        }
        assert errors[FACTORS[0]] < 0.93 * errors[FACTORS[-1]]


def test_the_class_average_is_what_the_label_alone_tells(served: Served) -> None:
    """The mean of the attacker's own images of that class."""
    splits = served.playground.columns[0].run.splits
    mean = splits.auxiliary.x[splits.auxiliary.y == splits.test.y[4]].mean(0)
    average = served.look(test=4)["columns"][0]["rebuilt"]["average"]
    assert average["mse"] == pytest.approx(float((mean - splits.test.x[4]).square().mean()))


def test_the_same_seed_draws_the_same_noise(served: Served) -> None:
    """At another level of noise, too, so that a slider moves what is there."""
    first, again, other = (served.look(test=1, seed=seed)["columns"][0] for seed in (3, 3, 4))
    assert first["sent"] == again["sent"] != other["sent"]
    double = served.look(test=1, seed=3, factor=2.0)["columns"][0]
    gap = np.subtract(first["sent"], first["features"])
    np.testing.assert_allclose(np.subtract(double["sent"], first["features"]), 2 * gap, atol=3e-4)


def test_private_answers_run_the_budget_down(served: Served) -> None:
    """Each costs its epsilon, a repeat nothing, and with nothing left there is none."""
    assert served.client.post("/api/budget").status_code == 204

    def ask(**question: Any) -> Any:
        reply = served.client.post("/api/ask", json=question)
        assert reply.status_code == 200, reply.text
        return reply.json()["columns"][0]

    first = ask(test=1, epsilon=16)
    assert (first["cost"], first["spent"], first["left"]) == (16, 16, 84) and first["is-fresh"]
    assert sum(first["probabilities"]) == pytest.approx(1, abs=1e-4)
    again = ask(test=1, epsilon=16)
    assert again["cost"] == 0 and again["left"] == 84 and again["label"] == first["label"]
    for seed in range(1, 6):
        last = ask(test=1, seed=seed, epsilon=16)
    assert last["left"] == 4
    assert "budget is spent" in ask(test=2, epsilon=8)["refused"]
    assert ask(test=2, epsilon=4)["left"] == 0
    assert served.client.post("/api/budget").status_code == 204
    assert ask(test=2, epsilon=4)["left"] == 96


@pytest.mark.parametrize(
    ("question", "reason"),
    [
        ({}, "not both"),
        ({"test": 0, "pixels": BLANK}, "not both"),
        ({"test": 0, "label": 3}, "a test image has its own"),
        ({"test": 80}, "must be from 0 to 79"),
        ({"test": -1}, "must be from 0 to 79"),
        ({"test": 1.5}, "test: Input should be a valid integer"),
        ({"pixels": [[[0.0] * 7] * 8]}, r"of shape (1, 8, 7), must be (1, 8, 8)"),
        ({"pixels": torch.zeros(3, 8, 8).tolist()}, "of shape (3, 8, 8), must be (1, 8, 8)"),
        ({"pixels": [[[0.0], [0.0, 1.0]]]}, "no table of numbers"),
        ({"pixels": ["a"]}, "no table of numbers"),
        ({"pixels": torch.full((1, 8, 8), 1.5).tolist()}, "in [1.5, 1.5], must be in [0, 1]"),
        ({"pixels": torch.full((1, 8, 8), -0.1).tolist()}, "must be in [0, 1]"),
        ({"pixels": BLANK, "label": 10}, "label is 10, must be from 0 to 9"),
        ({"test": 0, "factor": 3}, "factor is 3, must be one of 0.125"),
        ({"test": 0, "messages": 3}, "messages is 3, must be 1, 2, 4"),
        ({"test": 0, "sede": 3}, "sede: Extra inputs are not permitted"),
    ],
)
def test_nonsense_is_refused_in_words(
    served: Served, question: dict[str, Any], reason: str
) -> None:
    """With what is allowed; never a failure."""
    reply = served.client.post("/api/look", json=question)
    assert reply.status_code == 422 and reason in reply.json()["detail"]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b'{"pixels": ' + str(BLANK).replace("0.0", "NaN").encode() + b"}", "NaN or infinity"),
        (b'{"pixels": ' + str(BLANK).replace("0.0", "1e999").encode() + b"}", "NaN or infinity"),
        (b'{"test": 0, "factor": NaN}', "factor: Input should be a finite number"),
        (b"[" * 100_000, "no JSON"),
        (b"{", "no JSON"),
        (b"\xff", "no JSON"),
        (b"[]", "valid dictionary"),
    ],
)
def test_bytes_that_are_no_question_are_refused(served: Served, body: bytes, reason: str) -> None:
    """What JSON's grammar does not allow, and what Python's reader takes all the same."""
    headers = {"content-type": "application/json"}
    reply = served.client.post("/api/look", content=body, headers=headers)
    assert reply.status_code == 422 and reason in reply.json()["detail"]
    assert served.client.post("/api/look", content=body).status_code == 415


def test_an_epsilon_between_the_sliders_places_is_refused(served: Served) -> None:
    """And costs nothing."""
    reply = served.client.post("/api/ask", json={"test": 0, "epsilon": 3})
    assert reply.status_code == 422 and "must be one of 0.25" in reply.json()["detail"]


def test_a_picture_of_the_right_kind_is_read(served: Served) -> None:
    """Grey, eight by eight; it can then be looked at."""
    reply = served.client.post("/api/picture", content=picture("L", (8, 8))).json()
    pixels = reply["pixels"]
    assert np.shape(pixels) == (1, 8, 8) and pixels[0][0][0] == pytest.approx(128 / 255)
    assert reply["note"] == ""
    assert served.look(pixels=pixels)["image"]["is-label-assumed"]


@pytest.mark.parametrize(
    ("data", "note"),
    [
        (picture("L", (9, 16)), "9x16 pixels, resized to 8x8"),
        (picture("RGB", (8, 8)), "colour taken as grey"),
        (picture("RGB", (20, 20)), "20x20 pixels, resized to 8x8; colour taken as grey"),
    ],
    ids=["size", "colour", "both"],
)
def test_another_picture_is_made_one_of_these(served: Served, data: bytes, note: str) -> None:
    """Of another size or in colour (here red); the page says what was done to it."""
    reply = served.client.post("/api/picture", content=data).json()
    assert np.shape(reply["pixels"]) == (1, 8, 8) and reply["note"] == note
    grey = 0.299 * 128 if "colour" in note else 128
    np.testing.assert_allclose(reply["pixels"], grey / 255, atol=0.005)


@pytest.mark.parametrize("data", [b"GIF89a junk", b"", b"\x89PNG"], ids=["junk", "empty", "cut"])
def test_what_is_no_picture_is_refused(served: Served, data: bytes) -> None:
    reply = served.client.post("/api/picture", content=data)
    assert reply.status_code == 422 and "cannot be used" in reply.json()["detail"]


def test_a_body_that_is_too_long_is_refused(served: Served) -> None:
    """More than eight megabytes."""
    assert served.client.post("/api/picture", content=bytes(2**23 + 1)).status_code == 413


@pytest.mark.parametrize("path", ["/", "/api/state", "/api/nothing"])
def test_other_hosts_are_refused(served: Served, path: str) -> None:
    """A name that leads here is somebody else's page; so is another origin."""
    for host in ("evil.example", "evil.example:80", "127.0.0.1.evil.example", "[::2]:80", ""):
        reply = served.client.get(path, headers={"host": host})
        assert reply.status_code in (400, 421), host
        assert "columns" not in reply.text
    assert served.client.get("/", headers={"host": "localhost:1"}).status_code == 200
    assert served.client.get("/", headers={"host": "[::1]:1"}).status_code == 200
    reply = served.client.post(
        "/api/look", json={"test": 0}, headers={"origin": "http://evil.example"}
    )
    assert reply.status_code == 421 and "another page" in reply.json()["detail"]


def test_it_listens_on_this_machine_unless_told(
    bench: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit status 2 before any work; and so for a variant that is not there."""
    assert main(["play", str(bench), "--host", "0.0.0.0"]) == 2
    assert "--insecure" in capsys.readouterr().err
    assert main(["play", str(bench), "--port", "0", "--variant", "clutser"]) == 2
    assert "must be one of cluster, none" in capsys.readouterr().err
    assert main(["play", str(bench / "runs" / "none-0"), "--variant", "none"]) == 2
    assert "must be one of this run" in capsys.readouterr().err
    assert main(["play", str(bench.parent)]) == 2
    assert "neither bench.json nor result.json" in capsys.readouterr().err


def test_a_question_costs_no_connection(served: Served) -> None:
    """Bodies are read whole: the next question on the same connection is answered."""
    with httpx.Client(base_url=served.client.base_url) as client:
        for _ in range(3):
            assert client.post("/api/look", json={"test": 0, "factor": 9}).status_code == 422
            assert client.get("/api/state").status_code == 200


def test_colour_is_not_drawn_and_classes_have_names(served: Served) -> None:
    """The page of colour images offers an upload and test images, not a brush."""
    column = served.playground.columns[0]
    x, y = column.candidates
    splits = replace(column.run.splits, class_names=tuple("abcdefghij"))
    colour = replace(
        column,
        candidates=Images(x.expand(-1, 3, -1, -1), y),
        run=column.run._replace(splits=splits),
    )
    accounts = served.playground.private_accounts[:1]
    playground = replace(served.playground, columns=(colour,), private_accounts=accounts)
    pages = [
        render_template("play/playground.html.jinja", nonce="", state=shown.describe())
        for shown in (served.playground, playground)
    ]
    assert ["Draw on it" in page for page in pages] == [True, False]
    assert all('id="upload"' in page for page in pages)
    assert f'aria-label="Test image 0, {"abcdefghij"[y[0]]}"' in pages[1]
    assert f"Test image 0, class {y[0]}" in pages[0]
