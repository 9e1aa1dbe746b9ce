"""Files for containers: what they start is started here, and what they ask for is there."""

import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
import typer.main
import yaml
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.parser import text_string_to_metric_families

from clients import ImageOwner, SplitClient
from clients.service.monitoring import Metrics
from fedcel.errors import ServiceError
from fedcel.runs import run_folder
from sims.commands import ledger as operator
from sims.commands.main import app
from sims.commands.serve import VARIABLES
from tests.clients.serving import running
from tests.fedcel.privacy.ledger.postgres import PostgresServer
from tests.system.services import Process, serving_forked
from tests.system.slow_connections import HALF_HANDSHAKE

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "deployment"
COMPOSE = yaml.safe_load((FOLDER / "compose.yaml").read_text())
MANIFESTS = list(yaml.safe_load_all((FOLDER / "kubernetes" / "service.yaml").read_text()))


def describe_pod() -> dict[str, Any]:
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
    issued = operator.issue_key(ledger, "phone", None, None, keys=Path(keys))
    (key,) = re.findall(r"key: (\S+)", issued)
    with serving_forked(tmp_path / "log", folder, environment=variables) as service:
        probed = {**os.environ, "FEDCEL_HEALTH": f"{service.url}/healthz"}
        assert subprocess.run([sys.executable, FOLDER / "health.py"], env=probed).returncode == 0
        x, y = run_folder.read_run(folder).splits.test
        owner = ImageOwner(x[:60], y[:60], state=tmp_path / "device")
        with SplitClient(service.url, key, owner, verify=pki / "ca.crt") as client:
            first, again = client.ask(x[0]), client.ask(x[0])
            assert first.is_fresh and not again.is_fresh
            assert first.remaining_epsilon == again.remaining_epsilon == 97  # of 100
        with SplitClient(service.url, key, owner, verify=pki / "ca.crt") as client:
            after = client.ask(x[0])  # the device's state makes it the same message
            assert after.values.tolist() == first.values.tolist() and not after.is_fresh
        with pytest.raises(ServiceError, match="not trusted"):
            SplitClient(service.url, key, owner)
        (container,) = describe_pod()["containers"]
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            path = container[probe]["httpGet"]["path"]
            assert httpx.get(f"{service.url}{path}", verify=False).status_code == 200
        text = httpx.get(f"{service.url}/metrics", verify=False).text
        end_beside_silent_connections(service, pki / "ca.crt")
    log = (tmp_path / "log").read_text()
    assert key[-43:] not in log and '"drained"' in log
    assert "all balances and links are right" in operator.verify_ledger(ledger)
    exposed = set(re.findall(r"^(fedcel_\w+)", text, re.MULTILINE))
    assert find_metrics(list_panels()) - exposed <= {"fedcel_refusals_total"}  # none was refused


def end_beside_silent_connections(service: Process, authority: Path) -> None:
    """End a service that waits neither for a half handshake nor for a client that says nothing."""
    trusting = ssl.create_default_context(cafile=authority)
    place = ("127.0.0.1", httpx.URL(service.url).port or 0)
    half_shaken, silent = (socket.create_connection(place) for _ in range(2))
    with half_shaken, trusting.wrap_socket(silent, server_hostname="127.0.0.1"):
        half_shaken.sendall(HALF_HANDSHAKE)
        start = time.monotonic()
        service.process.send_signal(signal.SIGTERM)
        assert service.process.wait(30) == 0
        assert time.monotonic() - start < 15


def list_panels() -> list[str]:
    board = json.loads((FOLDER / "grafana-dashboard.json").read_text())
    return [target["expr"] for panel in board["panels"] for target in panel["targets"]]


def list_alerts() -> list[str]:
    (group,) = yaml.safe_load((FOLDER / "prometheus-rules.yml").read_text())["groups"]
    return [rule["expr"] for rule in group["rules"]]


def find_metrics(expressions: list[str]) -> set[str]:
    return {name for text in expressions for name in re.findall(r"\bfedcel_\w+", text)}


def list_exposed(text: str) -> dict[str, set[str]]:
    """Return the names that a text of /metrics may have, by metric; those not yet counted, too."""
    endings = {
        "counter": ["_total"],
        "gauge": [""],
        "histogram": ["_bucket", "_sum", "_count"],
    }
    return {
        family.name: {f"{family.name}{ending}" for ending in endings[family.type]}
        for family in text_string_to_metric_families(text)
        if family.name.startswith("fedcel_") and not family.name.endswith("_created")
    }


def test_the_dashboard_shows_all_that_the_service_counts(tmp_path: Path) -> None:
    """Each metric of the service, and nothing that it does not have; alerts neither."""
    with running(tmp_path) as up:
        exposed = list_exposed(httpx.get(f"{up.url}/metrics").text)
    names = find_metrics(list_panels())
    assert [name for name, series in exposed.items() if not series & names] == []
    assert names | find_metrics(list_alerts()) <= set().union(*exposed.values())
    assert len(exposed) >= 9 and len(list_alerts()) >= 5


def test_expressions_use_labels_that_the_metrics_have() -> None:
    """A wrong label selects nothing, without a word."""
    metrics = [m for m in vars(Metrics()).values() if isinstance(m, MetricWrapperBase)]
    labels = {metric._name: {*metric._labelnames, "le"} for metric in metrics}
    for expression in [*list_panels(), *list_alerts()]:
        for name, selector in re.findall(r"\b(fedcel_\w+)(?:\{(.*?)\})?", expression):
            known_labels = labels[re.sub("_(total|bucket|sum|count)$", "", name)] | {"instance"}
            used = re.findall(r"(\w+)=", selector) + re.findall(r"by \((\w+)\)", expression)
            assert set(used) <= known_labels, expression


def test_prometheus_gets_the_files_that_it_reads() -> None:
    """Its rules lie beside its settings, in the folder and in the container."""
    settings = yaml.safe_load((FOLDER / "prometheus.yml").read_text())
    mounted = dict(place.split(":")[:2] for place in COMPOSE["services"]["prometheus"]["volumes"])
    for name in settings["rule_files"]:
        assert (FOLDER / name).is_file()
        assert mounted[f"./{name}"] == f"/etc/prometheus/{name}"
