"""Each side of the service asks for its own libraries alone."""

import subprocess
import sys

WEB = ("fastapi", "starlette", "uvicorn", "prometheus_client")
SERVICE = ("clients.service", "clients.service_messages", "clients.encoder_leak_guard")
SIDES = {
    ("clients.device",): (*WEB, "flwr"),
    SERVICE: (*WEB, "flwr", "httpx"),
    ("clients.flower.client_app", "clients.flower.evaluation_client"): WEB,
}
"""Modules of a side, and what may be missing there."""
SCRIPT = f"""if True:
    import sys
    from importlib import import_module

    class Missing:
        names = ()

        def find_spec(self, name, path=None, target=None):
            if name.partition(".")[0] in self.names:
                raise ModuleNotFoundError(name, name=name)

    sys.meta_path.insert(0, Missing())
    for modules, Missing.names in {SIDES}.items():
        for name in [*sys.modules]:
            if name.partition(".")[0] in ("clients", "fedcel", *Missing.names):
                del sys.modules[name]
        for name in modules:
            import_module(name)
"""


def test_what_another_side_needs_may_be_missing() -> None:
    """A device has no web framework, a node neither that nor the device's HTTP client."""
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
