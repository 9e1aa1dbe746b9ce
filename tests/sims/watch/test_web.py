"""The watched page over HTTP: its numbers are the folder's, and nobody else is let in."""

import json
from pathlib import Path

import pytest

from clients.service_messages import LOOPBACK_HOSTS
from fedcel.files import write_whole
from sims.commands.main import main
from sims.watch import create_app, describe_folder
from tests.sims.served_page import serve_app
from tests.sims.watch.conftest import copy_run, write_into


def test_the_page_and_its_state_follow_the_folder(trained: Path, tmp_path: Path) -> None:
    """Nothing is loaded from elsewhere; a round that is written is there at once."""
    folder = copy_run(trained, tmp_path / "run", rounds=4)
    with write_into(folder), serve_app(create_app(folder, LOOPBACK_HOSTS)) as client:
        page = client.get("/")
        assert (
            page.status_code == 200
            and "default-src 'none'" in page.headers["content-security-policy"]
        )
        assert "https://" not in page.text
        assert page.text.count("http://") == page.text.count("http://www.w3.org/2000/svg") == 1
        assert client.get("/api/state").json()["round"] == 4
        path = folder / "events.jsonl"
        line = json.loads(path.read_text().splitlines()[-1])
        write_whole(path, path.read_text() + json.dumps(line | {"round": 5}) + "\n")
        state = client.get("/api/state").json()
        assert state["round"] == 5 and not state["is-over"]
        assert client.get("/report").status_code == 422
        (folder / "report.html").write_text("<p>the report</p>")
        reply = client.get("/report")
        assert reply.text == "<p>the report</p>"
        assert "script-src 'none'" in reply.headers["content-security-policy"]
        path.write_text("{")
        reply = client.get("/api/state")
        assert reply.status_code == 422 and "events.jsonl is damaged" in reply.json()["detail"]


def test_a_folder_that_has_no_name_here_has_its_own(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The title of `fedcel watch .`."""
    monkeypatch.chdir(copy_run(trained, tmp_path / "pilot"))
    assert describe_folder(Path("."))["name"] == "pilot"


def test_strangers_are_refused(trained: Path, tmp_path: Path) -> None:
    """Another name of this machine, another page, a path out of the bench's runs."""
    copy_run(trained, tmp_path / "bench" / "runs" / "other-0")
    copy_run(trained, tmp_path / "secret")
    with serve_app(create_app(tmp_path / "bench", LOOPBACK_HOSTS)) as client:
        for headers in ({"host": "evil.example"}, {"origin": "http://evil.example"}):
            for path in ("/", "/api/state", "/report"):
                assert client.get(path, headers=headers).status_code == 421
        for name in ("..", "../../secret", "other-0/..", "none-0"):
            reply = client.get("/api/state", params={"run": name})
            assert reply.status_code == 422 and "There is no run" in reply.json()["detail"]


def test_a_run_of_a_bench_is_shown_by_name(trained: Path, tmp_path: Path) -> None:
    """The bench's own page has the cells, each run the page of a run."""
    copy_run(trained, tmp_path / "bench" / "runs" / "none-0")
    with serve_app(create_app(tmp_path / "bench", LOOPBACK_HOSTS)) as client:
        assert client.get("/api/state").json()["kind"] == "bench"
        state = client.get("/api/state", params={"run": "none-0"}).json()
        assert (state["kind"], state["name"], state["is-over"]) == ("run", "none-0", True)
        assert "All cells" in client.get("/", params={"run": "none-0"}).text


def test_what_is_no_run_is_refused_at_the_door(tmp_path: Path, trained: Path) -> None:
    """Before a port is taken; so are other machines, unless they are let in by name."""
    assert main(["watch", str(tmp_path / "none")]) == 2
    assert main(["watch", str(trained), "--host", "0.0.0.0"]) == 2
