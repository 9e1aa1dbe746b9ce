"""Each side of the service asks for its own libraries alone."""

import subprocess
import sys

import pytest

WEB = ("fastapi", "starlette", "uvicorn", "prometheus_client")
SCRIPT = """if True:
    import sys
    from importlib import import_module

    class Missing:
        def find_spec(self, name, path=None, target=None):
            if name.partition(".")[0] in {missing}:
                raise ModuleNotFoundError(name, name=name)

    sys.meta_path.insert(0, Missing())
    for name in {modules}:
        import_module(name)
"""


@pytest.mark.parametrize(
    ("modules", "missing"),
    [
        (("clients.device",), (*WEB, "flwr")),
        (
            ("clients.service", "clients.service_messages", "clients.encoder_leak_guard"),
            (*WEB, "flwr", "httpx"),
        ),
        (("clients.flower.client_app", "clients.flower.evaluation_client"), WEB),
    ],
)
def test_what_another_side_needs_may_be_missing(
    modules: tuple[str, ...], missing: tuple[str, ...]
) -> None:
    """A device has no web framework, a node neither that nor the device's HTTP client."""
    script = SCRIPT.format(modules=modules, missing=missing)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
