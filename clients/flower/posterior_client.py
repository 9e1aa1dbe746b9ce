"""The training client: pass arrays to the pure local update and back."""

from collections.abc import Callable

from flwr.client import NumPyClient
from flwr.common import NDArrays, Scalar

FitResult = tuple[NDArrays, int, dict[str, Scalar]]


class PosteriorClient(NumPyClient):
    """Runs MI-regularised local SGLD bound to one holder's data; decides nothing itself."""

    def __init__(self, local_update: Callable[[NDArrays, dict[str, Scalar]], FitResult]) -> None:
        self.local_update = local_update

    def fit(self, parameters: NDArrays, config: dict[str, Scalar]) -> FitResult:
        """Return the delta (or the weights), the number of examples, and metrics.

        `parameters` is the global model, one array per layer; `config` holds `server-round`,
        `share` (w_k) and `total-examples` (N).
        """
        return self.local_update(parameters, config)
