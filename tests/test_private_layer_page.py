"""The page add-privacy-to-a-server.md as typed: its server over real HTTP, its functions alone."""

import contextlib
import io
import re
import runpy
import socket
import time
from pathlib import Path
from threading import Thread

import httpx
import pytest
import uvicorn

from fedcel.privacy.ledger import MICRO, Ledger
from sims.commands.ledger import issue_key

PAGE = Path(__file__).parents[1] / "docs" / "how-to" / "add-privacy-to-a-server.md"
SERVER, CLIENT, FUNCTION = re.findall(
    r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE
)


def run_program(text: str, path: Path) -> str:
    """Run a program as a file of its own; return what it prints."""
    path.write_text(text)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        runpy.run_path(str(path))
    return printed.getvalue()


def test_the_server_answers_privately(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over a socket: the client's program, a stranger, an address that is not named."""
    monkeypatch.chdir(tmp_path)
    said = issue_key("budget.db", "phone", 100, None)
    monkeypatch.setenv("KEY", re.findall(r"^key: (\S+)", said, re.MULTILINE)[0])
    (tmp_path / "server.py").write_text(SERVER)
    app = runpy.run_path("server.py")["app"]
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, ws="none"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        while not server.started and thread.is_alive():
            time.sleep(0.01)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        program = CLIENT.replace("http://localhost:8000", url)
        first = run_program(program, tmp_path / "client.py")
        again = run_program(program, tmp_path / "client.py")
        stranger = httpx.post(f"{url}/predict", content=b"")
        elsewhere = httpx.get(f"{url}/openapi.json")
        server.should_exit = True
        thread.join(20)
    assert "'fresh': True, 'left': 96.0" in first and "'probabilities'" in first
    assert "'fresh': False, 'left': 96.0" in again
    assert (stranger.status_code, elsewhere.status_code) == (401, 404)
    with Ledger.open(tmp_path / "budget.db") as ledger:
        assert ledger.balance("phone").spent == 4 * MICRO and ledger.verify() == []


def test_the_functions_run_as_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program asserts by itself that a repeat is free."""
    monkeypatch.chdir(tmp_path)
    assert '"fresh": true, "left": 96.0' in run_program(FUNCTION, tmp_path / "function.py")
