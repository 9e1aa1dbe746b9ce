"""Attackers of one encoder, trained in the background; decoders are kept with the run."""

import hashlib
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from functools import partial
from pathlib import Path

import torch
from torch.nn.modules.module import register_module_forward_pre_hook

from fedcel.attacks import (
    REVISION,
    Attacker,
    KernelRidge,
    Rebuild,
    apply_network,
    build_decoder_network,
    train_inverter,
)
from fedcel.data import Images
from fedcel.errors import RunError, describe_unforeseen
from fedcel.files import read_tensors, write_tensors
from fedcel.nets import SplitNet
from fedcel.runs import Run, posterior_samples
from fedcel.torch_state import make_generator
from sims.play.noise_levels import MeanMessage, NoiseLevel, list_levels

MAX_OWN_IMAGES = 1000
"""Images of the attackers' own that they learn from."""
MAX_VALUES = 2**25
"""Pixels of own images, times levels, up to which kernel ridge learns all levels ahead."""
LOWEST_PRIORITY = 19
DECODER, RIDGE = "decoder", "kernel-ridge"


class StoppedError(Exception):
    """The playground ended while an attacker learned."""


class Background:
    """Two threads at the lowest priority, one for decoders and one for kernel ridge."""

    def __init__(self) -> None:
        self._pools = {
            name: ThreadPoolExecutor(1, f"fedcel-play-{name}", initializer=self._begin_thread)
            for name in (DECODER, RIDGE)
        }
        self._threads = set[int]()
        self._is_closed = threading.Event()

    def start(self, name: str, work: Callable[[], Rebuild]) -> Future[Rebuild]:
        """Begin a task, after those of its name."""
        return self._pools[name].submit(work)

    def check_open(self) -> None:
        """Stop a task whose result nobody awaits any more."""
        if self._is_closed.is_set() and threading.get_ident() in self._threads:
            raise StoppedError

    def close(self) -> None:
        """End all tasks, a training at its next layer."""
        self._is_closed.set()
        hook = register_module_forward_pre_hook(lambda module, inputs: self.check_open())
        for pool in self._pools.values():
            pool.shutdown(cancel_futures=True)
        hook.remove()

    def _begin_thread(self) -> None:
        """Let this thread run where nothing else does, on one core."""
        self._threads.add(threading.get_ident())
        torch.set_num_threads(1)
        with suppress(OSError):  # of a system where threads have no priority of their own
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LOWEST_PRIORITY)


class Attackers:
    """Attackers of one encoder: a decoder for all levels of noise, kernel ridge for each."""

    def __init__(self, net: SplitNet, run: Run, background: Background) -> None:
        self._net, self._run, self._background = net, run, background
        self._levels = list_levels(net)
        self._state = "waiting"
        self._decoder = background.start(DECODER, self._open_decoder)
        self._ridges = dict[NoiseLevel, Future[Rebuild]]()
        self._is_ahead = run.splits.auxiliary.x.numel() * len(self._levels) <= MAX_VALUES
        if self._is_ahead:
            for level in sorted(self._levels, key=lambda level: abs(level.factor - 1)):
                self._start_ridge(level)

    def find(self, level: NoiseLevel) -> dict[str, Rebuild | str]:
        """Return each attacker, or what it waits for. `level` is one of `find_level`."""
        if level not in self._ridges:
            if not self._is_ahead:  # one of large images fills much memory
                for future in self._ridges.values():
                    future.cancel()
                self._ridges.clear()
            self._start_ridge(level)
        futures = {DECODER: self._decoder, RIDGE: self._ridges[level]}
        return {name: self._describe(name, future) for name, future in futures.items()}

    def wait(self) -> None:
        """Return when everything that was begun is learned."""
        begun = (self._decoder, *self._ridges.values())
        wait(begun)
        for future in begun:
            future.result()

    def _describe(self, name: str, future: Future[Rebuild]) -> Rebuild | str:
        if not future.done():
            return self._state if name == DECODER else "learning"
        error = future.exception()
        return future.result() if error is None else f"failed: {describe_unforeseen(error)}"

    def _start_ridge(self, level: NoiseLevel) -> None:
        def learn() -> Rebuild:
            return KernelRidge().learn(self._make_attacker([level], is_described=False))

        self._ridges[level] = self._background.start(RIDGE, learn)

    def _open_decoder(self) -> Rebuild:
        """Return the decoder that the run keeps, or train it and keep it, where there is room."""
        attacker = self._make_attacker(self._levels, is_described=True)
        path = self._run.folder / "play" / f"decoder-{find_key(self._net, self._run)}.safetensors"
        with suppress(RunError, RuntimeError):  # there is none yet, or it is damaged
            return load_decoder(path, tuple(attacker.auxiliary.x.shape[1:]))
        decoder = train_inverter(attacker).net
        with suppress(OSError):
            path.parent.mkdir(exist_ok=True)
            write_tensors(path, {k: v.cpu() for k, v in decoder.state_dict().items()})
        return partial(apply_network, decoder)

    def _make_attacker(self, levels: list[NoiseLevel], *, is_described: bool) -> Attacker:
        return make_attacker(
            self._net, self._run, levels, is_described=is_described, show_line=self._note_line
        )

    def _note_line(self, line: str) -> None:
        self._background.check_open()
        if line.startswith("epoch"):
            self._state = line


def make_attacker(
    net: SplitNet,
    run: Run,
    levels: list[NoiseLevel],
    *,
    is_described: bool,
    show_line: Callable[[str], None] | None = None,
) -> Attacker:
    """Return an attacker who knows the defence and sends images of its own through it."""
    own_images = Images(*(part[:MAX_OWN_IMAGES] for part in run.splits.auxiliary))
    stream = make_generator(run.settings.seed, "play-attackers")
    return Attacker(MeanMessage(net, levels, is_described), own_images, 1.0, stream, show_line)


def load_decoder(path: Path, shape: tuple[int, ...]) -> Rebuild:
    """Return a decoder that was trained earlier; RunError or RuntimeError where it is none."""
    tensors, _ = read_tensors(path)
    if "0.mean" not in tensors:
        raise RunError(f"{path} is damaged: it holds no decoder")
    axes = tensors.get("1.axes")  # where long messages are projected on those of its training
    examples = torch.zeros(2 if axes is None else axes.shape[1], len(tensors["0.mean"]))
    decoder = build_decoder_network(examples, shape, torch.Generator())
    decoder.load_state_dict(tensors)
    return partial(apply_network, decoder)


def find_key(net: SplitNet, run: Run) -> str:
    """Return a name for all that a decoder depends on: encoder, noise, images, attack."""
    digest = hashlib.sha256(f"{REVISION} {run.settings.seed} {list_levels(net)}".encode())
    own_images = run.splits.auxiliary.x[:MAX_OWN_IMAGES]
    digest.update(f"{net.cut} {run.settings.model_dump_json()}".encode())
    for tensor in (*posterior_samples(run), own_images):
        digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]
