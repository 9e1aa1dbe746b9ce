"""One thread in tests: nets this small are slower with more."""

import torch

torch.set_num_threads(1)
