"""The page of private answers as it is typed: train, serve, ask."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.system.federation import BIN, ROOT, find_port

PAGE = ROOT / "docs" / "how-to" / "serve-private-answers.md"


@pytest.mark.long
def test_the_page_is_typed_from_training_to_an_answer(tmp_path: Path) -> None:
    """Its shell block, then its program, on another port; the service ends with the shell."""
    text = PAGE.read_text()
    shell, program = (
        re.search(rf"^```{kind}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
        for kind in ("sh", "python")
    )
    assert shell and program
    port = str(find_port())
    script = shell[1].replace(
        "private-key pki/server.key", f"private-key pki/server.key --port {port}"
    )
    script += "trap 'kill %1' EXIT\npython program.py\n"
    (tmp_path / "program.py").write_text(program[1].replace("8443", port))
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    done = subprocess.run(
        ["bash", "-eumo", "pipefail", "-c", script],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PATH": f"{BIN}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "label-only at epsilon 4" in done.stdout
    assert re.search(r"^Leak\(.*PrivatePrediction\(", done.stdout, re.MULTILINE)
