"""Files for containers: what they start is started here, and what they ask for is there."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
import typer.main
import yaml

from clients import ImageOwner, SplitClient
from fedcel.runs import run_folder
from sims.commands.main import app
from sims.commands.serve import VARIABLES
from tests.fedcel.privacy.ledger.postgres import PostgresServer

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "deployment"
COMPOSE = yaml.safe_load((FOLDER / "compose.yaml").read_text())
MANIFESTS = list(yaml.safe_load_all((FOLDER / "kubernetes" / "service.yaml").read_text()))


def describe_pod() -> dict[str, Any]:
    """Return the template of the deployment's pods."""
    (deployment,) = [m for m in MANIFESTS if m["kind"] == "Deployment"]
    found: dict[str, Any] = deployment["spec"]["template"]["spec"]
    return found


def list_environments() -> dict[str, dict[str, str]]:
    """Return the environment that either file gives to the service."""
    (container,) = describe_pod()["containers"]
    pod = {entry["name"]: entry.get("value", "") for entry in container["env"]}
    return {"compose": COMPOSE["services"]["service"]["environment"], "kubernetes": pod}


@pytest.mark.parametrize("place", ["compose", "kubernetes"])
def test_the_service_is_configured_by_options_that_it_has(place: str) -> None:
    """A variable that stands for no option would be read by nobody, without a word."""
    (serve,) = [
        command
        for name, command in typer.main.get_command(app).commands.items()  # type: ignore[attr-defined]
        if name == "serve"
    ]
    options = {f"{VARIABLES}_{option.name.upper()}" for option in serve.params}
    assert f"{VARIABLES}_SET" in {option.envvar for option in serve.params}
    named = {name for name in list_environments()[place] if name.startswith(VARIABLES)}
    assert len(named) >= 6 and named <= options


def test_nothing_in_a_container_has_rights() -> None:
    """No capability, no file of the image written, no other user than 10001."""
    for name, service in COMPOSE["services"].items():
        if name not in ("postgres", "prometheus"):
            assert service["read_only"] and service["cap_drop"] == ["ALL"], name
    pod = describe_pod()
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsUser"] == 10001
    assert container["securityContext"]["readOnlyRootFilesystem"]
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in pod["volumes"]}
    used = {place.split(":")[0] for s in COMPOSE["services"].values() for place in s["volumes"]}
    assert {name for name in used if not name.startswith("./")} == set(COMPOSE["volumes"])


def test_scripts_get_what_they_ask_for() -> None:
    """SuperLink and nodes: as many words as their scripts want."""
    for name in ("superlink", "supernode-0", "supernode-1"):
        service = COMPOSE["services"][name]
        script = (FOLDER / service["entrypoint"]).read_text()
        (at_least,) = re.findall(r"\$# -lt (\d)", script)
        assert len(service["command"]) >= int(at_least)
    names = [COMPOSE["services"][f"supernode-{number}"]["command"][3] for number in (0, 1)]
    assert names == ["0", "1"]


def test_the_service_of_the_container_answers_and_is_watched(
    tmp_path: Path, folder: Path, postgres: PostgresServer
) -> None:
    """Its words and variables, places replaced: a ledger in PostgreSQL, probes, every panel."""
    settings = COMPOSE["services"]["service"]
    assert settings["command"] == ["serve", "/run-of-model"]
    pki = tmp_path / "pki"
    certificates = [sys.executable, FOLDER / "certificates.py", "server", pki, "127.0.0.1"]
    subprocess.run(certificates, check=True, capture_output=True)
    places = {"/pki": str(pki), "/keys": str(tmp_path), "0.0.0.0": "127.0.0.1", "8443": "0"}
    variables = {
        name: re.sub("|".join(map(re.escape, places)), lambda found: places[found[0]], value)
        for name, value in settings["environment"].items()
        if name.startswith(VARIABLES)
    }
    ledger = postgres.make_database()
    variables |= {f"{VARIABLES}_LEDGER": ledger, f"{VARIABLES}_ALLOW_CHANCE": "true"}
    variables |= {f"{VARIABLES}_SET": "privacy.mechanism=label-only privacy.epsilon=3"}
    keys = variables[f"{VARIABLES}_KEYS"]
    command = [sys.executable, "-m", "sims", "ledger", "keys", ledger, "--keys", keys]
    issued = subprocess.run(
        [*command, "--client", "phone"], capture_output=True, text=True, check=True, cwd=ROOT
    )
    (key,) = re.findall(r"key: (\S+)", issued.stdout)
    with subprocess.Popen(
        [sys.executable, "-m", "sims", "serve", str(folder)],
        cwd=ROOT, env={**os.environ, **variables}, text=True,
        stdout=subprocess.PIPE, stderr=(tmp_path / "log").open("w"),
    ) as service:  # fmt: skip
        try:
            assert service.stdout
            said = [service.stdout.readline() for _ in range(3)][-1]
            assert said.startswith("serving "), (tmp_path / "log").read_text()
            url = said.split()[-1]
            probed = {**os.environ, "FEDCEL_HEALTH": f"{url}/healthz"}
            assert (
                subprocess.run([sys.executable, FOLDER / "health.py"], env=probed).returncode == 0
            )
            x, y = run_folder.read_run(folder).splits.test
            owner = ImageOwner(x[:60], y[:60], state=tmp_path / "device")
            with SplitClient(url, key, owner, verify=pki / "ca.crt") as client:
                assert client.ask(x[0]).remaining_epsilon == 97  # of 100: the variable was read
            (container,) = describe_pod()["containers"]
            for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
                path = container[probe]["httpGet"]["path"]
                assert httpx.get(f"{url}{path}", verify=False).status_code == 200
            text = httpx.get(f"{url}/metrics", verify=False).text
        finally:
            service.terminate()
    shown = (FOLDER / "grafana-dashboard.json").read_text()
    panels = [
        target["expr"] for panel in json.loads(shown)["panels"] for target in panel["targets"]
    ]
    names = {name for expression in panels for name in re.findall(r"fedcel_\w+", expression)}
    assert len(names) >= 9
    for name in names:
        assert re.search(rf"^{name}[{{ ]", text, re.MULTILINE) or "refusals" in name, name
