"""What an installation without any extra promises; run by `make` in an environment that has none.

Fails with the first promise that is broken. Seconds are printed; what decides them, whether torch
is imported, is asserted.
"""

import os
import subprocess
import sys
import time
from importlib.util import find_spec

EXTRA_OF_COMMAND = {
    "simulate digits": "simulation",
    "bench digits": "simulation",
    "tune digits": "tune",
    "attack no": "simulation",
    "report no": "report",
    "table no": "report",
    "export no --out no.onnx": "export",
    "serve no": "service",
    "ledger list no": "service",
}
HELP = "from sims.commands.main import main\nassert main(['--help']) == 0"


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, env=os.environ)


def fastest(*words: str) -> float:
    """Return the shortest of five runs, in seconds: what the machine does beside is not ours."""
    seconds = []
    for _ in range(5):
        begin = time.perf_counter()
        assert run(*words).returncode == 0, words
        seconds.append(time.perf_counter() - begin)
    return min(seconds)


def check_imports() -> None:
    """All that `fedcel` exports is there, but what an extra brings, which is named."""
    script = "import fedcel\nfor name in fedcel.__all__: getattr(fedcel, name)"
    done = run("-c", script)
    assert done.returncode == 0, done.stderr
    script = (
        "import torch, fedcel\nfedcel.private_logits(torch.zeros(1, 3), fedcel.Settings().privacy)"
    )
    assert 'pip install "fedcel[privacy]"' in (said := run("-c", script).stderr), said
    done = run("-c", "import fedcel, sys\nassert 'torch' not in sys.modules")
    assert done.returncode == 0, done.stderr
    alone, ours = fastest("-c", "import torch"), fastest("-c", "import torch, fedcel; fedcel.Cut")
    print(f"import torch {alone:.2f} s, with fedcel {ours:.2f} s")


def check_library() -> None:
    """Leaks are measured and losses train; attacks name the extra that they lack, before work."""
    import torch

    import fedcel

    stream = torch.Generator().manual_seed(0)
    x, y = torch.rand(60, 1, 4, 4, generator=stream), torch.arange(60) % 3
    encoder = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 5))
    leak = fedcel.measure_leakage(encoder, x, y, noise=0.3)
    z = encoder(x).detach()
    same = fedcel.measure_leakage(features=z.numpy(), labels=y.numpy(), noise=0.3)
    assert leak.linearised is not None and same.linearised is None  # it needs the encoder
    assert leak.to_dict() | {"linearised": None} == same.to_dict()
    assert len(str(same).splitlines()) == 3
    for kind in ("Plain", "Cluster", "Gated", "Hybrid", "MutualInformation"):
        cel, other = (getattr(fedcel, f"{kind}CEL")(classes=3, noise=0.3) for _ in range(2))
        cel.refresh(z, y)
        leaf = z.clone().requires_grad_()
        (fedcel.ramp_weight(9, 10) * cel(leaf, y)).backward()
        assert leaf.grad is not None and leaf.grad.any(), kind
        other.load_state_dict(cel.state_dict())
        assert torch.equal(other(z, y), cel(z, y)), kind
    error: Exception | None = None
    try:
        fedcel.invert(encoder, x[:5], auxiliary=x[5:], noise=0.3)
    except fedcel.MissingExtraError as missing:
        error = missing
    assert 'pip install "fedcel[attacks]"' in str(error), error


def check_commands() -> None:
    """Help and settings work; each command names the extra that it lacks, and exits with 2."""
    seconds = fastest("-m", "sims", "--help")
    print(f"fedcel --help {seconds:.2f} s")
    done = run("-c", f"import sys\n{HELP}\nassert 'torch' not in sys.modules")
    assert done.returncode == 0, done.stderr
    done = run("-m", "sims", "settings", "cel")
    assert done.returncode == 0, done.stderr
    for words, extra in EXTRA_OF_COMMAND.items():
        done = run("-m", "sims", *words.split())
        assert done.returncode == 2, (words, done.stderr)
        assert f'pip install "fedcel[{extra}]"' in done.stderr, (words, done.stderr)


if __name__ == "__main__":
    assert find_spec("flwr") is None, "this environment has an extra: it shows nothing"
    check_imports()
    check_library()
    check_commands()
