"""The page that follows a folder, over HTTP to this machine only."""

import asyncio
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Response
from fastapi.responses import HTMLResponse, JSONResponse

from clients.service.problems import ProblemError, ProblemKind
from fedcel.errors import RunError
from sims.local_page import POLICY, create_local_app, make_page
from sims.watch.bench_state import RUNS_FOLDER, describe_bench, is_bench
from sims.watch.run_state import REPORT_FILE, describe_run

OPEN_SECONDS = 10.0
"""A page that has asked within this time is open still; one in the background asks every 5 s."""


class Following:
    """Folder that a page follows, and the process that writes into it where that is known."""

    def __init__(self, folder: Path, *, is_accompanied: bool = False) -> None:
        """Follow the folder of a run or a bench.

        `is_accompanied`: a process writes into it, or is about to, until `note_end` is called.
        """
        self.folder = folder.absolute()  # "." has no name
        self.is_accompanied = is_accompanied
        self._ends_with_process = is_accompanied
        self._asked = -OPEN_SECONDS
        self._is_told = False

    @property
    def is_awaited(self) -> bool:
        """Whether an open page has not been told yet that the process ended."""
        return not self._is_told and time.monotonic() - self._asked < OPEN_SECONDS

    def note_end(self) -> None:
        """Note that the process has ended: what is in the folder is all that there will be."""
        self.is_accompanied = False

    def describe(self, run: str | None) -> dict[str, Any]:
        """Return the state of the folder, or of a run in it, as JSON has it.

        Raises:
            RunError: A file is damaged, or the folder is neither a run's nor a bench's.
        """
        self._asked = time.monotonic()
        folder = self.find_folder(run)
        if run is None and is_bench(folder):
            state = describe_bench(folder)
        else:
            state = describe_run(folder, may_begin=self.is_accompanied)
        state["is-over"] = not self.is_accompanied and state["phase"] in ("finished", "stopped")
        state["is-last"] = state["is-over"] and self._ends_with_process
        self._is_told = self._is_told or not self.is_accompanied
        return state

    def find_folder(self, run: str | None) -> Path:
        """Return the folder, or that of a run in it; ProblemError where there is none."""
        if run is None:
            return self.folder
        folder = self.folder / RUNS_FOLDER / run
        if not re.fullmatch(r"[A-Za-z0-9][\w.-]*", run) or not folder.is_dir():
            raise ProblemError(ProblemKind.INVALID, f"There is no run {run!r} in {self.folder}.")
        return folder


def create_app(following: Following, hosts: Sequence[str] | None) -> FastAPI:
    """Return the application.

    Args:
        following: What it shows.
        hosts: Names that a request may call this machine by, without a port; None: any. Others are
            refused, see `create_local_app`.

    Returns:
        The application.
    """
    app = create_local_app("fedcel watch", hosts)

    async def describe(run: str | None) -> dict[str, Any]:
        try:
            return await asyncio.to_thread(following.describe, run)
        except FileNotFoundError:  # removed between two looks
            raise RunError(
                f"{following.folder} has changed or is gone; load the page again"
            ) from None

    @app.get("/")
    async def send_page(run: str | None = None) -> Response:
        state = await describe(run)
        return make_page("watch/watch.html.jinja", state=state, run=run)

    @app.get("/api/state")
    async def send_state(run: str | None = None) -> Response:
        return JSONResponse(await describe(run))

    @app.get("/report")
    async def send_report(run: str | None = None) -> Response:
        path = following.find_folder(run) / REPORT_FILE
        if not path.exists():
            raise ProblemError(
                ProblemKind.INVALID, f"There is no {path}; `fedcel report {path.parent}` draws it."
            )
        text = await asyncio.to_thread(path.read_text, encoding="utf-8")
        policy = POLICY.format(script="'none'")
        return HTMLResponse(text, headers={"Content-Security-Policy": policy})

    return app
