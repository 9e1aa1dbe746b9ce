"""One holder: what it computes from its own images alone."""

from fedcel.federation import client_update
from fedcel.settings import parse_settings


def test_a_small_holder_gives_its_gradient_under_a_narrow_prior() -> None:
    """The prior divides by all images, not by its own; and what stands still is not told."""
    s = parse_settings({"prior.scale": 0.05, "local.control": "fresh", "rounds": 10})
    flat = client_update.build_client_net(s)
    start = flat.vector.clone()
    early, late = (client_update.compute_client_gradient(s, 0, start, number) for number in (1, 10))
    assert early[: flat.cut].any()
    assert not late[: flat.cut].any()
    assert late[flat.cut :].any()
