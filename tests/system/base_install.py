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
    "uncertainty uncertainty --out no": "simulation",
    "attack no": "simulation",
    "report no": "report",
    "table no": "report",
    "escalate no": "simulation",
    "export no --out no.onnx": "export",
    "serve no": "service",
    "ledger list no": "service",
}
HELP = "from sims.commands.main import main\nassert main(['--help']) == 0"


def run(*words: str) -> subprocess.CompletedProcess[str]:
    """Run Python, of this environment."""
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
    check_commands()
