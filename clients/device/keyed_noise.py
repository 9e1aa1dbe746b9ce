"""Noise at the cut that is the same for the same image: asking again tells nothing new.

xi is the output of SHAKE-256 on HMAC-SHA256(device key, encoder and cut, image), turned normal by
the inverse distribution function. Only the secret key keeps xi from being computed by whoever
guesses the image. torch's own generator would not do: it keeps 32 bits of its seed, so that all of
its noises can be tried without any key.
"""

import hmac
import os
import secrets
from contextlib import suppress
from hashlib import sha256, shake_256
from pathlib import Path
from tempfile import NamedTemporaryFile

import numpy as np
import torch
from jaxtyping import Float, UInt64
from torch import Tensor

from fedcel.errors import RunError
from fedcel.nets import Cut, apply_noise

KEY_BYTES = 32


def load_device_key(path: str | Path | None) -> bytes:
    """Return the secret key of a device, 32 bytes.

    Args:
        path: Its file, made at first use; None: a new key, for this process.

    Raises:
        RunError: The file holds no key, or others may read it.
    """
    if path is None:
        return secrets.token_bytes(KEY_BYTES)
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        with NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.") as file:
            file.write(secrets.token_bytes(KEY_BYTES))
            file.flush()
            os.fsync(file.fileno())
            with suppress(FileExistsError):  # another process was first
                os.link(file.name, path)  # whole, or not there
    mode = path.stat().st_mode & 0o777
    key = path.read_bytes()
    if mode & 0o077:
        raise RunError(f"{path} is open to others (mode {mode:o}); chmod it to 600")
    if len(key) != KEY_BYTES:
        raise RunError(f"{path} holds {len(key)} bytes, a device key has {KEY_BYTES}; remove it")
    return key


def compute_fingerprint(key: bytes, law: str, image: Float[Tensor, "C H W"]) -> bytes:
    """Compute 32 bytes of an image that nobody can compute without `key`.

    `law` names all else that decides the message, encoder and cut: under another law the same image
    has other noise, or two messages would tell their common noise.
    """
    data = image.detach().to(torch.float32).contiguous().numpy()
    return hmac.digest(key, f"{law}{data.shape}".encode() + data.tobytes(), sha256)


def draw_uniforms(seed: bytes, purpose: bytes, count: int) -> Float[Tensor, " N"]:
    """Return float64 values in (0, 1), a function of a secret 32-byte seed."""
    return words_to_uniforms(np.frombuffer(shake_256(purpose + seed).digest(8 * count), "<u8"))


def words_to_uniforms(words: UInt64[np.ndarray, " N"]) -> Float[Tensor, " N"]:
    """Return the middles of 2^52 equal parts of (0, 1), exact in double precision."""
    return torch.from_numpy(((words >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52)


def disturb_features(
    cut: Cut, z: Float[Tensor, " D"], seed: bytes, scale: Float[Tensor, " D"] | None = None
) -> Float[Tensor, " D"]:
    """Return the message m * z + sigma * s * xi of the cut's law, m and xi from a secret seed.

    `scale` is s, the noise of each value in units of sigma; None: all are 1.
    """
    mask = noise = None
    if cut.dropout:
        mask = draw_uniforms(seed, b"mask", len(z)) >= cut.dropout
    if cut.sigma:
        noise = torch.special.ndtri(draw_uniforms(seed, b"noise", len(z))) * cut.sigma
    return apply_noise(z, mask, noise, scale)
