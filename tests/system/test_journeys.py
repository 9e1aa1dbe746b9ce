"""The journeys' page, typed in: train, serve, attack the run and the service, report."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.test_docs import commands

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "how-to" / "find-your-way.md"
QUICK = 'names = "optimal,logit-inversion"\nseeds = 1\nbudget = 0.02'
SMALLER = {
    "rounds = 60": "rounds = 12",
    'seeds = "0,1,2"': 'seeds = "0"',
    '"0.3,0.6"': '"0.3"',
    '"0.3,1,3"': '"1"',
    "mypackage.losses:build": "plain",  # the page's own is the reader's
    "[bench]": f"[settings.attack]\n{QUICK}\n[bench]",
}


def typed(words: list[str], place: Path, **more: str) -> str:
    """Return what a command of the page prints."""
    shorter = ["attack.budget=0.05" if word == "attack.budget=4" else word for word in words]
    done = subprocess.run(
        [sys.executable, "-m", "sims", *shorter],
        cwd=place,
        env={**os.environ, "PYTHONPATH": str(ROOT), **more},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"{words}: {done.stderr[-2000:]}"
    return done.stdout


@pytest.mark.long
def test_the_service_and_its_audit(tmp_path: Path) -> None:
    """Every command of the page's last two journeys, each with what the last one left."""
    scenario = re.search(r"```toml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert scenario
    text = scenario[1]
    for long, short in SMALLER.items():
        assert long in text, f"{long!r} is not on the page any more"
        text = text.replace(long, short)
    (tmp_path / "tuned.toml").write_text(text)  # tuning and benches have tests of their own
    steps = [words for program, *words in commands(PAGE) if program == "fedcel"]
    kinds = ["tune", "bench", "table", "table", "simulate", "ledger", "serve", "attack", "attack"]
    assert [words[0] for words in steps[:10]] == [*kinds, "report"]  # then those of sentences
    train, create_key, serve, attack, attack_live, report = steps[4:10]
    typed(train, tmp_path)
    key = re.findall(r"key: (\S+)", typed(create_key, tmp_path))[0]
    certificates = [sys.executable, ROOT / "examples/deployment/certificates.py"]
    subprocess.run([*certificates, "server", "pki", "127.0.0.1"], cwd=tmp_path, check=True)
    typed(attack, tmp_path)
    port = 20_000 + os.getpid() % 20_000
    served = [sys.executable, "-m", "sims", *serve, "--port", str(port)]
    up = subprocess.Popen(served, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)})
    try:
        live = [word.replace("8443", str(port)) for word in attack_live]
        said = tried(live, tmp_path, key, up)
    finally:
        up.terminate()
        up.wait(30)
    assert "logit-inversion" in said
    typed(report, tmp_path)
    assert (tmp_path / "runs/pilot/report.html").stat().st_size > 10_000


def tried(words: list[str], place: Path, key: str, up: "subprocess.Popen[bytes]") -> str:
    """Return what the attack on the service prints, once that is up."""
    until = time.monotonic() + 120
    while True:
        try:
            return typed(words, place, FEDCEL_KEY=key)
        except AssertionError as error:
            if "no connection" not in str(error) or up.poll() or time.monotonic() > until:
                raise
            time.sleep(1)
