"""Parts of a run that are a user's own, and the one that an error came from."""

from collections.abc import Iterator
from contextlib import contextmanager

from fedcel.errors import FailedError, FedcelError, find_last_module
from fedcel.plugins import PartName
from fedcel.settings import Settings


def list_own_parts(settings: Settings) -> list[PartName]:
    """List the parts that settings name by import strings."""
    parts = [
        PartName("net.name", settings.net.name, "check_net"),
        PartName("data.source", settings.data.source.kind_name, "check_source"),
        PartName("cel.kind", settings.cel.kind, "check_cel"),
        PartName("defence.name", settings.defence.name, "check_defence or check_transform"),
        PartName("local.sampler", settings.local.sampler, "check_sampler"),
        PartName("strategy.name", settings.strategy.name, "check_delta_strategy"),
        PartName("privacy.mechanism", settings.privacy.mechanism, "check_mechanism"),
    ]
    return [part for part in parts if ":" in part.ref]


@contextmanager
def blame_own_parts(settings: Settings) -> Iterator[None]:
    """Turn an unforeseen error that came from a user's part into a FailedError that names it."""
    try:
        yield
    except FedcelError:
        raise
    except (Exception, SystemExit) as error:  # a part that asks the process to end fails, too
        modules = {part.ref.partition(":")[0]: part for part in list_own_parts(settings)}
        module = find_last_module(error, modules)
        if module is None:
            raise
        raise FailedError(modules[module].describe_failure(error)) from error
