"""The page that follows a folder, over HTTP to this machine only."""

import asyncio
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Response
from fastapi.responses import HTMLResponse, JSONResponse

from clients.service.problems import ProblemError, ProblemKind
from fedcel.errors import RunError
from sims.local_page import POLICY, create_local_app, make_page
from sims.watch.folder_state import (
    REPORT_FILE,
    RUNS_FOLDER,
    describe_bench,
    describe_run,
    is_bench,
)


def describe_folder(folder: Path, run: str | None = None) -> dict[str, Any]:
    """Return the state of a run, a bench, or a run in a bench, as JSON has it.

    Raises:
        RunError: A file is damaged, or the folder is neither a run's nor a bench's.
        ProblemError: There is no such run in the bench.
    """
    folder = find_folder(folder, run)
    state = describe_bench(folder) if run is None and is_bench(folder) else describe_run(folder)
    return {**state, "is-over": state["phase"] in ("finished", "stopped")}


def find_folder(folder: Path, run: str | None) -> Path:
    """Return the folder, or that of a run in it; ProblemError where there is none."""
    folder = folder.absolute()  # "." has no name
    if run is None:
        return folder
    place = folder / RUNS_FOLDER / run
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*", run) or not place.is_dir():
        raise ProblemError(ProblemKind.INVALID, f"There is no run {run!r} in {folder}.")
    return place


def create_app(folder: Path, hosts: Sequence[str] | None) -> FastAPI:
    """Return the application.

    Args:
        folder: Of a run or a bench.
        hosts: Names that a request may call this machine by, without a port; None: any. Others are
            refused, see `create_local_app`.

    Returns:
        The application.
    """
    app = create_local_app("fedcel watch", hosts)

    async def describe(run: str | None) -> dict[str, Any]:
        try:
            return await asyncio.to_thread(describe_folder, folder, run)
        except FileNotFoundError:  # removed between two looks
            raise RunError(f"{folder} has changed or is gone; load the page again") from None

    @app.get("/")
    async def send_page(run: str | None = None) -> Response:
        state = await describe(run)
        return make_page("watch/watch.html.jinja", state=state, run=run)

    @app.get("/api/state")
    async def send_state(run: str | None = None) -> Response:
        return JSONResponse(await describe(run))

    @app.get("/report")
    async def send_report(run: str | None = None) -> Response:
        path = find_folder(folder, run) / REPORT_FILE
        if not path.exists():
            raise ProblemError(
                ProblemKind.INVALID, f"There is no {path}; `fedcel report {path.parent}` draws it."
            )
        text = await asyncio.to_thread(path.read_text, encoding="utf-8")
        policy = POLICY.format(script="'none'")
        return HTMLResponse(text, headers={"Content-Security-Policy": policy})

    return app
