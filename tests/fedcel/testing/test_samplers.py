"""The built-in sampler holds its contract."""

from fedcel.testing.samplers import SamplerContract


class TestLangevin(SamplerContract):
    """Plain Langevin steps."""

    name = "langevin"
