"""Serve a finished run over HTTP: the composition of model, mechanism, ledger and web server."""

import signal
import socket
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import torch
import uvicorn
from fastapi import FastAPI

from clients.service import load_served
from clients.service.app import ServiceApp
from clients.service.model_offer import ModelOffer
from clients.service.monitoring import configure_logs
from clients.service.onnx_heads import Engine, use_onnx_heads
from clients.service.service import Limits, Service
from clients.service.worker import ProcessWorker, spare_from_collections
from clients.service_messages import LOOPBACK_HOSTS, ExpectedCard
from fedcel.errors import RunError, SettingsError
from fedcel.metrics import chance_accuracy, is_at_chance
from fedcel.privacy import (
    AnswerCalibration,
    Mechanism,
    accuracy_ceiling,
    score_answers,
    score_probabilities,
)
from fedcel.privacy.ledger import LedgerAddress
from fedcel.runs import Run, calibrate_answers, predict_labelled, run_folder
from fedcel.settings import Scalar
from sims.commands.bounded_http import BoundedHttpProtocol
from sims.commands.listening import Endpoint, format_address, open_socket
from sims.commands.onnx_export import convert_heads
from sims.overrides import override_group

DRAIN_SECONDS = 30  # for questions under way at the end
SMALL_LOSS = 5.0  # points of accuracy that private answers are worth
IDLE_SECONDS = 30  # that a connection may be silent, a header incomplete, an answer unread


def run_service(
    folder: Path,
    ledger: LedgerAddress,
    endpoint: Endpoint,
    limits: Limits,
    *,
    keys: Path | None = None,
    overrides: Mapping[str, Scalar] | None = None,
    allow_chance: bool = False,
    engine: Engine = "torch",
) -> None:
    """Answer queries until SIGTERM or Ctrl-C, then those under way, then return.

    `keys`: file of clients' keys, None: beside the ledger's. `overrides`: settings of the group
    privacy, instead of the run's. `allow_chance`: also serve answers that are not shown to be
    better than a guess. SettingsError, RunError or LedgerError say what keeps it from starting.
    """
    check_endpoint(endpoint)
    configure_server(FastAPI(), endpoint)  # a useless certificate is named before the run is read
    torch.set_num_threads(1)  # batches are small; more threads would only wait for each other
    if isinstance(ledger, Path):  # a link may point elsewhere later
        ledger = ledger.parent.resolve() / ledger.name
    with ProcessWorker() as worker:  # it starts while the run is read
        run = run_folder.read_run(folder)
        offer, verdict = load_offer(run, overrides or {}, engine, allow_chance=allow_chance)
        service = Service(offer, ledger, limits, keys=keys, worker=worker)
        server = uvicorn.Server(configure_server(ServiceApp(service), endpoint))
        with open_socket(endpoint) as listener:
            configure_logs()
            scheme = "https" if endpoint.certificate else "http"
            print(verdict)
            greeting = f"serving {offer.model.version}: {scheme}://{format_address(listener)}"
            service.on_failure = partial(setattr, server, "should_exit", True)
            spare_from_collections()
            run_until_stopped(server, listener, greeting)
    if service.failure is not None:
        raise service.failure
    if not server.started:
        raise RunError(f"{folder}: the service did not start; see its log")


def load_offer(
    run: Run, overrides: Mapping[str, Scalar], engine: Engine, *, allow_chance: bool
) -> tuple[ModelOffer, str]:
    """Return what a run offers, and two lines on what its answers are worth.

    SettingsError or RunError where it is not served.
    """
    settings = override_group(run.settings, overrides, "privacy")
    model = load_served(run._replace(settings=settings))
    mechanism = settings.privacy.build(model.classes)
    if engine == "onnx":
        model = use_onnx_heads(model, convert_heads(model))
    calibration = calibrate_answers(run, mechanism)
    card, is_at_chance = expect_answers(run, mechanism, calibration)
    worth = (
        f"private answers are right in {100 * card.accuracy:.1f} ± {100 * card.half_width:.1f} % "
        f"of {card.images} test images, {100 * card.without_privacy:.1f} % without privacy, a "
        f"guess in {100 * card.guess:.1f} % ({mechanism.name} at epsilon {mechanism.epsilon:g}, "
        f"ECE {card.ece:.3f})"
    )
    if is_at_chance and not allow_chance:
        raise SettingsError(f"{worth}: {refuse_chance(run, card)}")
    ceiling = accuracy_ceiling(mechanism.epsilon, mechanism.delta, run.splits.classes)
    limit = f"a model that is never wrong would reach {100 * ceiling:.1f} % at this epsilon"
    loss = 100 * (card.without_privacy - card.accuracy)
    if is_at_chance:
        verdict = f"not worth it: no better than a guess; {limit}"
    elif loss <= SMALL_LOSS:
        verdict = f"worth it: privacy costs {max(loss, 0.0):.1f} points of accuracy; {limit}"
    else:
        verdict = (
            f"costly: privacy takes {loss:.1f} points of accuracy; {limit}; see `fedcel privacy "
            f"{run.folder}` for the epsilon that costs less"
        )
    return ModelOffer(model, mechanism, calibration, card), f"{worth}\n{verdict}"


def expect_answers(
    run: Run, mechanism: Mechanism, calibration: AnswerCalibration
) -> tuple[ExpectedCard, bool]:
    """Measure what private answers are worth, and whether they are not shown to beat a guess.

    RunError where the model has no finite answers to its test images.
    """
    images = predict_labelled(run, run.splits.test, "expected-answers")
    if not images.logits.isfinite().all():
        raise RunError(
            f"{run.folder}: the model has no finite answer to some of its test images; train it "
            "anew with a lower local.rate"
        )
    classes = run.splits.classes
    score = score_answers(mechanism, calibration, images)
    card = ExpectedCard(
        accuracy=score.accuracy,
        half_width=score.half_width,
        images=len(run.splits.test.y),
        without_privacy=score_probabilities(images.logits.softmax(1), images).accuracy,
        guess=1 / classes,
        ece=score.ece,
    )
    return card, score.is_at_chance(classes)


def refuse_chance(run: Run, card: ExpectedCard) -> str:
    """Return why answers are not served, and what to do about it."""
    remedy = (
        "raise privacy.epsilon or take another privacy.mechanism, see "
        f"`fedcel privacy {run.folder}`"
    )
    if is_at_chance(card.without_privacy, card.images, chance_accuracy(run.splits.test.y)):
        remedy = "the model itself is no better, so train it first"
    return (
        f"not shown to be better than a guess ({100 * card.guess:.1f} %); {remedy}, or serve it "
        "all the same with --allow-chance"
    )


def check_endpoint(endpoint: Endpoint) -> None:
    """Refuse an address at which keys and messages would travel in clear: SettingsError."""
    if (endpoint.certificate is None) != (endpoint.private_key is None):
        raise SettingsError("--certificate and --private-key belong together; give both")
    for path in (endpoint.certificate, endpoint.private_key):
        if path and not path.is_file():
            raise SettingsError(
                f"{path} is no file; give PEM files as --certificate, --private-key"
            )
    is_local = endpoint.host in LOOPBACK_HOSTS
    if endpoint.certificate is None and not (is_local or endpoint.insecure):
        raise SettingsError(
            f"--host is {endpoint.host!r} without a certificate: keys and messages would travel in "
            "clear; give --certificate and --private-key, or --insecure behind a proxy with TLS"
        )


def run_until_stopped(server: uvicorn.Server, listener: socket.socket, greeting: str) -> None:
    """Print the greeting and answer until SIGTERM or Ctrl-C, and then what is under way.

    Whoever has read the greeting may stop the server.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)  # the server drains, then raises it again
    print(greeting, flush=True)
    server.run(sockets=[listener])


def configure_server(
    app: FastAPI, endpoint: Endpoint, idle_seconds: int = IDLE_SECONDS
) -> uvicorn.Config:
    """Return the web server's settings; its own log has no place for what was sent.

    SettingsError where certificate and key are of no use.
    """
    config = uvicorn.Config(
        app,
        access_log=False,
        http=BoundedHttpProtocol,
        log_config=None,
        proxy_headers=False,  # nothing reads the asker's address
        server_header=False,
        ws="none",
        ssl_certfile=endpoint.certificate,
        ssl_keyfile=endpoint.private_key,
        timeout_keep_alive=idle_seconds,
        timeout_graceful_shutdown=DRAIN_SECONDS,
    )
    try:
        config.load()
    except OSError as error:  # ssl.SSLError is one
        raise SettingsError(
            f"--certificate {endpoint.certificate}, --private-key {endpoint.private_key}: {error}; "
            "must be a certificate with its chain, and its key without a passphrase, both in PEM"
        ) from None
    return config
