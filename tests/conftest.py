"""One thread in tests: threads that fight over cores make them slow and noisy."""

import os

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")

import torch
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("fedcel", deadline=None, max_examples=25, derandomize=True)
settings.load_profile("fedcel")
