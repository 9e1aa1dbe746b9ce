"""Flower's SuperNode that ends when it can no longer work: then a service manager starts it again.

supernode.py OPTION...    the OPTIONs are those of flower-supernode

In Flower 1.42 an error of the server (its database is locked, say) ends the thread that says that
the node is alive, or the loop that takes messages; the process stays, as a node that is offline for
good. Here either ends the process with status 1.
"""

import os
import sys
import threading
import traceback

import health
from flwr.supernode.cli.flower_supernode import flower_supernode


def end_process(reason: str) -> None:
    """End at once: Flower's threads would keep the process."""
    print(f"this node can no longer work and ends: {reason}", file=sys.stderr, flush=True)
    os._exit(1)


def end_with_thread(failure: threading.ExceptHookArgs) -> None:
    """End because a thread has died."""
    traceback.print_exception(failure.exc_value)
    end_process(f"{failure.exc_type.__name__} in a thread")


if __name__ == "__main__":
    threading.excepthook = end_with_thread
    health.watch(health.read_url("http"))
    flower_supernode()
    end_process("its loop over messages has ended")
