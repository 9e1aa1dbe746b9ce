"""Attacks on finished runs and on live services.

`sims.attacking.live_service` is imported by itself: it needs what a device needs.
"""

from sims.attacking.attacked_run import attack_run, catch_up

__all__ = ["attack_run", "catch_up"]
