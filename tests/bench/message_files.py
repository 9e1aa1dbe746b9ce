"""Files of the project that run between a Flower train message and its reply.

`python -m tests.bench.message_files` prints them: `cluster` on digits, a node's second round, in
which all that a process keeps is there.
"""

import sys
from collections import Counter
from pathlib import Path
from types import FrameType

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict

from clients.flower.client_app import app
from fedcel.federation import record_names
from fedcel.nets import to_arrays
from fedcel.run_parts import build_workspace_net
from fedcel.settings import parse_run_config
from sims.engines.in_memory_grid import allow_messages

RUN_CONFIG = {"clients": 4, "cel.kind": "cluster", "cel.warm-up": 0, "local.steps": 3, "rounds": 10}
ROOT = Path(__file__).parents[2]
PACKAGES = ("fedcel", "clients", "strategies", "sims")


def record_files(round_number: int = 2) -> Counter[str]:
    """Answer the train messages of the first rounds, and record the last.

    Args:
        round_number: The round that is recorded.

    Returns:
        Calls within each file, by its path below the root.
    """
    net = build_workspace_net(parse_run_config(RUN_CONFIG))
    arrays = ArrayRecord(to_arrays(net.vector, net.shapes))
    context = Context(1, 101, {"partition-id": 1}, RecordDict(), {**RUN_CONFIG})
    calls: Counter[str] = Counter()

    def count(frame: FrameType, event: str, _: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(ROOT):
            name = path.relative_to(ROOT)
            if name.parts[0] in PACKAGES:
                calls[name.as_posix()] += 1

    for number in range(1, round_number + 1):
        config = {
            record_names.ROUND: number,
            record_names.WEIGHT: 0.25,
            record_names.TOTAL: 997,
            record_names.STATE_ROUND: number - 1,
        }
        records = {record_names.ARRAYS: arrays, record_names.CONFIG: ConfigRecord(config)}
        with allow_messages():
            message = Message(RecordDict(dict(records)), dst_node_id=101, message_type="train")
        calls.clear()
        sys.setprofile(count)
        try:
            with allow_messages():
                app(message, context)
        finally:
            sys.setprofile(None)
    return calls


if __name__ == "__main__":
    files = record_files()
    for name, calls in sorted(files.items()):
        print(f"{calls:6} {name}")
    print(len(files), "files")
