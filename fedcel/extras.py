"""Optional packages, and the extra of the distribution that brings each of them."""

from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

from fedcel.errors import FedcelError

PACKAGES = {
    "attacks": ("torchmetrics",),
    "diagnostics": ("arviz_stats",),
    "privacy": ("dp_accounting", "opendp"),
    "report": ("jinja2", "markupsafe", "matplotlib"),
    "simulation": ("PIL", "datasets", "flwr", "flwr_datasets", "ray", "torchvision"),
    "deployment": ("PIL", "datasets", "flwr", "flwr_datasets"),
    "tune": ("optuna",),
    "models": ("timm", "torchvision"),
    "service": ("fastapi", "prometheus_client", "uvicorn"),
    "postgresql": ("psycopg",),
    "device": ("httpx",),
    "onnx": ("onnxruntime",),
    "export": ("onnx", "onnxscript"),
    "audit": (),
    "trackers": ("PIL", "mlflow", "tensorboard"),
    "wandb": ("wandb",),
}
"""Packages that each extra brings by itself, by the names that are imported."""

INCLUDES = {
    "simulation": ("attacks", "diagnostics", "privacy", "report"),
    "deployment": ("diagnostics", "privacy"),
    "tune": ("simulation",),
    "audit": ("attacks", "onnx", "report"),
    "service": ("privacy",),
}
"""The other extras that an extra brings."""


class MissingExtraError(FedcelError, ImportError):
    """A package is missing that an extra of the distribution brings."""


def list_packages(extra: str) -> tuple[str, ...]:
    """Return all packages that an extra brings, those of the extras that it includes as well."""
    included = (package for name in INCLUDES.get(extra, ()) for package in list_packages(name))
    return (*PACKAGES[extra], *included)


def missing_extra_error(package: str, extra: str | None = None) -> MissingExtraError | None:
    """Make the error for a missing module; None for one that no extra brings.

    It names the install command of `extra`, else of the first extra with the package.
    """
    top = package.partition(".")[0]
    extra = extra or next((name for name, packages in PACKAGES.items() if top in packages), None)
    if extra is None:
        return None
    return MissingExtraError(
        f'the package {top!r} is not installed; it comes with: pip install "fedcel[{extra}]"',
        name=top,
    )


def require_extra(extra: str) -> None:
    """Refuse to begin what an extra is needed for: MissingExtraError for a missing package."""
    for package in list_packages(extra):
        if not is_installed(package) and (missing := missing_extra_error(package, extra)):
            raise missing


def is_installed(package: str) -> bool:
    """Whether a package, or a part of one, can be imported; nothing below its parent is run."""
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:  # the parent is missing
        return False


def import_optional(module: str) -> ModuleType:
    """Import an optional module now; MissingExtraError names the extra that brings it."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        missing = missing_extra_error(error.name or module)
        if missing is None:
            raise
        raise missing from error
