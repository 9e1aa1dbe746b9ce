"""The web server around the service: certificates, silent connections, settings of its own."""

import asyncio
import json
import re
import socket
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Thread

import pytest
import torch
import uvicorn
from fastapi import FastAPI

from clients.service.monitoring import configure_logs
from fedcel.errors import SettingsError
from fedcel.privacy import LabelledLogits, fit_calibration
from sims.commands.listening import Endpoint
from sims.commands.main import main
from sims.commands.web_server import (
    check_endpoint,
    configure_server,
    load_offer,
)
from tests.clients.serving import fork_worker, made_run

LOCAL = Endpoint("127.0.0.1", 0, None, None, False)
ASKED = b"GET /slow HTTP/1.1\r\nHost: here\r\n"


def slow_app() -> FastAPI:
    """Return an application that takes longer to answer than a header may take to arrive."""
    app = FastAPI()

    @app.get("/slow")
    async def slow() -> None:
        await asyncio.sleep(1.5)

    return app


@pytest.fixture
def port() -> Iterator[int]:
    """A server that waits one second for a header."""
    server = uvicorn.Server(configure_server(slow_app(), LOCAL, idle_seconds=1))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        server.should_exit = True
        thread.join(10)
    assert not thread.is_alive()


def kept_open(port: int, first: bytes, drip: bytes) -> tuple[bytes, float]:
    """Return what came back before the server closed, and the seconds, eight at most.

    `first` is sent at once, `drip` a byte every quarter of a second.
    """
    start, reply, unsent = time.monotonic(), b"", list(drip)
    with (
        socket.create_connection(("127.0.0.1", port), timeout=0.25) as line,
        suppress(ConnectionError),
    ):
        line.sendall(first)
        while time.monotonic() - start < 8:
            try:
                part = line.recv(4096)
            except TimeoutError:
                line.sendall(bytes(unsent[:1]))
                del unsent[:1]
                continue
            if not part:
                break
            reply += part
    return reply, time.monotonic() - start


def test_a_header_arrives_in_time_or_the_connection_is_closed(port: int) -> None:
    """Nothing, a drip, half a header after an answer; an answer itself may take longer."""
    whole = ASKED + b"\r\n"
    with ThreadPoolExecutor() as pool:
        silent = pool.submit(kept_open, port, b"", b"")
        dripping = pool.submit(kept_open, port, b"", ASKED)
        answered = pool.submit(kept_open, port, whole, b"")
        again = pool.submit(kept_open, port, whole, ASKED)
    for future in (silent, dripping):
        reply, seconds = future.result()
        assert reply == b"" and 0.9 < seconds < 8
    for future in (answered, again):
        reply, seconds = future.result()
        assert reply.startswith(b"HTTP/1.1 200 OK") and 2.4 < seconds < 8


def test_a_certificate_that_is_none_is_named_before_anything_is_served(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line, exit status 2, no ledger."""
    monkeypatch.setattr("fedcel.runs.run_folder.read_run", lambda _: made_run())
    junk, key = tmp_path / "junk.pem", tmp_path / "key.pem"
    for path in (junk, key):
        path.write_text("no PEM")
    words = ["serve", str(tmp_path), "--certificate", str(junk), "--private-key", str(key)]
    assert main([*words, "--port", "0"]) == 2
    out, errors = capsys.readouterr()
    assert str(junk) in errors and str(key) in errors and "in PEM" in errors
    assert "serving" not in out and not (tmp_path / "budget.db").exists()


def test_answers_of_one_service_may_cost_something_else() -> None:
    """What is not given stays; what is no setting of privacy stays whatever is given."""
    run = made_run()
    (model, mechanism, *_), _ = load_offer(run, {}, "torch", allow_chance=True)
    assert (mechanism.epsilon, model.privacy.epsilon) == (4, 4)
    other = {"privacy.epsilon": 2, "privacy.mechanism": "gaussian"}
    (changed, mechanism, *_), _ = load_offer(run, other, "torch", allow_chance=True)
    assert (mechanism.name, mechanism.epsilon, changed.privacy.epsilon) == ("gaussian", 2, 2)
    assert changed.privacy.budget == model.privacy.budget and changed.version == model.version


def test_answers_at_chance_are_not_served(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit status 2, with what they are worth and what to do; with the flag they are served."""
    monkeypatch.setattr("fedcel.runs.run_folder.read_run", lambda _: made_run())
    monkeypatch.setattr("uvicorn.Server.run", lambda self, sockets: setattr(self, "started", True))
    words = ["serve", str(tmp_path), "--port", "0", "--set", "privacy.epsilon=0.001"]
    # Of guesses one in forty looks better than a guess, as intervals of 95 % go.
    assert [main(words) for _ in range(4)].count(2) >= 2
    errors = capsys.readouterr().err
    assert re.search(
        r"are right in 1?\d\.\d ± \d\.\d % of 400 test images.*label-only at epsilon 0.001", errors
    )
    assert (
        "not shown to be better than a guess (10.0 %); the model itself is no better, so train"
        in errors
    )
    assert "--allow-chance" in errors
    assert main([*words, "--allow-chance"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("not worth it: no better than a guess; a model that is never wrong")
    assert lines[1].endswith("would reach 10.0 % at this epsilon")


def test_good_answers_are_served_with_what_they_are_worth(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run whose heads read the label off the image: labels alone reach the ceiling."""
    run = made_run()
    monkeypatch.setattr("fedcel.runs.run_folder.read_run", lambda _: run)
    monkeypatch.setattr("uvicorn.Server.run", lambda self, sockets: setattr(self, "started", True))
    right = 9.0 * torch.nn.functional.one_hot(run.splits.test.y.repeat(5), 10)
    images = LabelledLogits(right.double(), run.splits.test.y.repeat(5), 5)
    monkeypatch.setattr("sims.commands.web_server.predict_labelled", lambda *_: images)
    monkeypatch.setattr(
        "sims.commands.web_server.calibrate_answers",
        lambda _, mechanism: fit_calibration(mechanism),
    )
    assert main(["serve", str(tmp_path), "--port", "0", "--set", "privacy.epsilon=40"]) == 0
    line, verdict, served = capsys.readouterr().out.splitlines()
    assert "are right in 100.0 ± 0.9 % of 400 test images, 100.0 % without privacy" in line
    assert verdict.startswith("worth it: privacy costs 0.0 points") and "serving " in served


def test_what_is_printed_is_what_devices_are_told() -> None:
    """The card holds the numbers of the line."""
    offer, verdict = load_offer(made_run(), {}, "torch", allow_chance=True)
    card = offer.expected
    assert card is not None and (card.images, card.guess) == (400, 0.1)
    assert (
        f"are right in {100 * card.accuracy:.1f} ± {100 * card.half_width:.1f} % of 400 test "
        f"images, {100 * card.without_privacy:.1f} % without privacy"
    ) in verdict
    assert f"ECE {card.ece:.3f})" in verdict


def test_a_model_without_finite_answers_is_not_served(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line, exit status 2."""
    run = made_run()
    for sample in run.samples:
        sample[run.flat.device_size :] *= 1e38
    monkeypatch.setattr("fedcel.runs.run_folder.read_run", lambda _: run)
    assert main(["serve", str(tmp_path), "--port", "0"]) == 2
    assert "has no finite answer to some of its test images" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("net.noise", 0.1, "a finished run keeps it; only privacy"),
        ("rounds", 1, "a finished run keeps it; only privacy"),
        ("privacy.epsilno", 1, "did you mean 'privacy.epsilon'"),
        ("privacy.epsilon", -1, "privacy.epsilon is -1"),
        ("privacy.epsilon", 200, "privacy.budget is 100"),
        ("privacy.mechanism", "none", "would not be private"),
    ],
)
def test_a_finished_run_keeps_the_rest(key: str, value: float | str, reason: str) -> None:
    """The settings' own checks hold, too."""
    with pytest.raises(SettingsError, match=reason):
        load_offer(made_run(), {key: value}, "torch", allow_chance=True)


def test_where_it_may_listen(tmp_path: Path) -> None:
    """Plain HTTP on this machine, or where the operator takes it upon himself."""
    check_endpoint(Endpoint("127.0.0.1", 0, None, None, False))
    check_endpoint(Endpoint("0.0.0.0", 0, None, None, True))
    with pytest.raises(ValueError, match="in clear"):
        check_endpoint(Endpoint("0.0.0.0", 0, None, None, False))
    with pytest.raises(ValueError, match="belong together"):
        check_endpoint(Endpoint("0.0.0.0", 0, tmp_path, None, True))
    with pytest.raises(ValueError, match="is no file"):
        check_endpoint(Endpoint("0.0.0.0", 0, tmp_path, tmp_path, False))


@pytest.mark.parametrize("is_ours", [True, False])
def test_a_start_that_fails_says_why_in_each_line(
    is_ours: bool,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The service's log, then the command's last line; words of a foreign error stay out."""
    monkeypatch.setattr("fedcel.runs.run_folder.read_run", lambda _: made_run())
    monkeypatch.setattr("clients.service.worker.start_process", fork_worker)
    monkeypatch.setattr(
        "sims.commands.web_server.configure_logs", lambda: configure_logs(sys.stderr)
    )
    if is_ours:
        (tmp_path / "ledger.db").write_bytes(b"no database" * 100)
    else:

        def fail(*_: object) -> None:
            raise ValueError("secret words")

        monkeypatch.setattr("clients.service.service.build_model_card", fail)
    words = ["serve", str(tmp_path), "--ledger", str(tmp_path / "ledger.db"), "--port", "0"]
    assert main([*words, "--allow-chance"]) == (1 if is_ours else 2)
    *log, last = capsys.readouterr().err.splitlines()
    failed, server = (json.loads(line) for line in log)
    assert failed["event"] == "start failed" and failed["level"] == server["level"] == "error"
    assert server["message"] == "Application startup failed. Exiting."
    if is_ours:
        assert failed["reason"] in last and "it is no ledger, or damaged" in last
    else:
        assert failed["reason"].startswith("ValueError at ") and "see its log" in last
        assert "secret" not in "".join([*log, last])
