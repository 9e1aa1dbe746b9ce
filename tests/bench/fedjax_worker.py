"""Rounds of fedjax for `tests.bench.fedjax_rounds`, in an environment that has no torch."""

import os
import sys
import time

os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"

import fedjax
import haiku
import jax
import numpy as np


def serve_rounds(clients: int, each: int, noise: float) -> None:
    """Take a round for each line that comes in, and print its seconds of processor time."""
    stream = np.random.RandomState(0)
    data = {
        b"%04d" % client: {
            "x": stream.rand(each, 64).astype("float32"),
            "y": stream.randint(0, 10, each),
        }
        for client in range(clients)
    }

    def classify(batch: dict[str, np.ndarray]) -> object:
        z = jax.nn.sigmoid(haiku.Linear(64)(jax.nn.relu(haiku.Linear(128)(batch["x"]))))
        if noise:
            z = z + noise * jax.random.normal(haiku.next_rng_key(), z.shape)
        return haiku.Linear(10)(z)

    def cross_entropies(batch: dict[str, np.ndarray], logits: object) -> object:
        scores = jax.nn.log_softmax(logits)
        return -jax.numpy.take_along_axis(scores, batch["y"][:, None], 1)[:, 0]

    example = {"x": np.zeros((1, 64), "float32"), "y": np.zeros(1, "int32")}
    model = fedjax.create_model_from_haiku(haiku.transform(classify), example, cross_entropies, {})
    with fedjax.for_each_client_backend("jit"):
        averaging = fedjax.algorithms.fed_avg.federated_averaging(
            fedjax.model_grad(model),
            fedjax.optimizers.sgd(0.1),
            fedjax.optimizers.sgd(1.0),
            fedjax.ShuffleRepeatBatchHParams(
                batch_size=32, num_epochs=None, num_steps=20, drop_remainder=True, seed=0
            ),
        )
    key = jax.random.PRNGKey(0)
    state = averaging.init(model.init(key))
    parts = fedjax.InMemoryFederatedData(data).clients()
    asked = [
        (client, part, own)
        for (client, part), own in zip(parts, jax.random.split(key, clients), strict=True)
    ]
    for _ in sys.stdin:
        start = time.process_time()
        state, _ = averaging.apply(state, asked)
        jax.block_until_ready(state.params)
        print(time.process_time() - start, flush=True)


if __name__ == "__main__":
    serve_rounds(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
