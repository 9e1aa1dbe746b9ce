"""Pictures of any size, mode and format, decoded into one tensor, and what was done to them."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from fedcel.data.images import fit_images
from fedcel.errors import DataError, describe_unforeseen, join_first
from fedcel.extras import import_optional
from fedcel.progress import tell_progress
from fedcel.tensors import to_floats

if TYPE_CHECKING:
    import PIL.Image

MODES = {"1": "L", "L": "L", "P": "RGB", "RGB": "RGB", "CMYK": "RGB", "YCbCr": "RGB"}
"""Pillow's modes of 8 bits a channel that become grey or red, green, blue without loss of range."""
ALPHA_MODES = {"LA": "L", "PA": "RGB", "RGBA": "RGB"}
"""Modes with an opacity for each pixel, and what they are once laid on white."""
DEEP_MODES = ("I;16", "I;16L", "I;16B")
"""Grey of 16 bits, whose range is known: 0 to 65535."""
ORIENTATION = 0x0112  # of EXIF
TURNS = {
    2: "FLIP_LEFT_RIGHT",
    3: "ROTATE_180",
    4: "FLIP_TOP_BOTTOM",
    5: "TRANSPOSE",
    6: "ROTATE_270",
    7: "TRANSVERSE",
    8: "ROTATE_90",
}
"""Turn that brings a picture upright, by its orientation, in the names of `PIL.Image.Transpose`."""
BITS = 0x0102  # a sample's, of TIFF
USUAL_BITS = range(15, 17)
"""Bits of the brightest pixel of many pictures that use the 16 bits that they are stored in."""
MAX_NAMED = 5  # pictures that a message names

PICTURE_CHANGES = {
    "grey": "grey taken as colour",
    "colour": "colour taken as grey",
    "transparent": "with transparency laid on white",
    "deep": "of 16 bits scaled to the range of the others",
    "turned": "turned upright as their EXIF says",
    "unread": "with EXIF that cannot be read, taken as they are stored",
    "frames": "with several frames, of which the first is taken",
}
"""Changes of a picture beside resizing, in the words of `describe_pictures`."""

SAVE_ANEW = "save them anew as JPEG or PNG of 8 bits a channel"
PictureFile = Path | BytesIO | None
"""Place of a picture; None where a table has no value."""
FIRST_IMAGES = 2
"""Pictures that are decoded before the check: enough to tell an image from its batch."""
ImageCheck = Callable[[Tensor], None]
"""Takes images (2, C, H, W) in [0, 1], and raises what refuses them."""
_CHECK: ContextVar[ImageCheck | None] = ContextVar("check_of_first_images", default=None)


@contextmanager
def check_first_images(check: ImageCheck) -> Iterator[None]:
    """Check the first pictures that are decoded inside, before the others are.

    Args:
        check: Takes the first images, grey ones still in one channel, and raises what refuses them.

    Returns:
        A context in which `decode_pictures` calls the check.
    """
    token = _CHECK.set(check)
    try:
        yield
    finally:
        _CHECK.reset(token)


@contextmanager
def resize_first_images(size: int) -> Iterator[None]:
    """Let the check of the first pictures see them resized to `size` pixels a side."""
    check = _CHECK.get()

    def check_resized(images: Float[Tensor, "2 C H W"]) -> None:
        if check is not None:
            check(fit_images(images, size=size, grey=False, where=""))

    with check_first_images(check_resized):
        yield


class PictureTally(NamedTuple):
    """Sizes and kinds of pictures before they became one tensor.

    Attributes:
        smallest: Least width and least height in pixels, which need not be of the same one.
        largest: Largest width and largest height.
        changes: How many pictures each of `PICTURE_CHANGES` was done to.
        top_level: Level of the brightest pixel of those of 16 bits; 0 where there is none.
    """

    smallest: tuple[int, int]
    largest: tuple[int, int]
    changes: Counter[str]
    top_level: int = 0


class DecodedPicture(NamedTuple):
    """One picture, as large as the settings ask for, and what it was."""

    pixels: Shaped[Tensor, "C H W"]
    """Unsigned bytes, or floats in [0, 1] of a picture of 16 bits."""
    size: tuple[int, int]
    changes: set[str]
    top_level: int


class PictureFaultError(Exception):
    """Why one picture cannot be used, as the rest of a sentence that begins with its name.

    Args:
        reason: The rest of the sentence.
        remedy: What to do with all pictures of this fault.
    """

    def __init__(self, reason: str, remedy: str = SAVE_ANEW) -> None:
        super().__init__(reason)
        self.remedy = remedy


def decode_pictures(
    files: Iterable[tuple[str, PictureFile]], count: int, *, size: int = 0, grey: bool = False
) -> tuple[Shaped[Tensor, "N C H W"], PictureTally]:
    """Decode pictures into one tensor; grey ones become colour where any picture has colours.

    Args:
        files: Each picture's name, for messages, and where it is.
        count: How many there are, one or more.
        size: Pixels a side that all are resized to; 0: as they are.
        grey: Whether colours are turned into their luminance.

    Returns:
        The images in the order of the files, as bytes unless some are of 16 bits, and what they
        were.

    Raises:
        DataError: Names the pictures that cannot be used, or that differ in size while `size` is 0.
    """
    x: Tensor | None = None
    faults: list[str] = []
    remedies: dict[str, None] = {}
    unequal: list[str] = []
    sizes: list[tuple[int, int]] = []
    changes = Counter[str]()
    first_name, top_level = "", 0
    for place, (name, file) in enumerate(files):
        tell_progress(place, count)
        try:
            picture = _decode_file(file, size, grey)
        except PictureFaultError as fault:
            faults.append(f"{name} {fault}")
            remedies[fault.remedy] = None
            continue
        sizes.append(picture.size)
        changes.update(picture.changes)
        top_level = max(top_level, picture.top_level)
        if x is None:
            x, first_name = _allocate(count, picture.pixels, size), name
        if picture.pixels.shape[1:] != x.shape[2:]:
            unequal.append(f"{name} of {format_size(picture.size)}")
            continue
        if len(picture.pixels) > x.shape[1]:
            x = x.expand(-1, len(picture.pixels), -1, -1).clone()
        if picture.pixels.dtype != x.dtype:  # some are of 16 bits
            x, picture = to_floats(x), picture._replace(pixels=to_floats(picture.pixels))
        x[place] = picture.pixels
        if (check := _CHECK.get()) and place + 1 == FIRST_IMAGES:
            check(to_floats(x[:FIRST_IMAGES]))
    if faults or x is None:
        raise DataError(
            f"{len(faults)} of {count} pictures cannot be used: "
            f"{join_first(faults, MAX_NAMED, '; ')}; remove them "
            f"from the data, or {' and '.join(remedies)}"
        )
    if unequal:
        raise DataError(
            f"{len(unequal)} of {count} pictures differ in size from {first_name} of "
            f"{format_size(sizes[0])} (width x height): "
            f"{join_first(unequal, MAX_NAMED, '; ')}; set data.size "
            "to the side, such as 32, to which all are resized"
        )
    if x.shape[1] == 1:
        del changes["grey"]
    widths, heights = zip(*sizes, strict=True)
    smallest, largest = (min(widths), min(heights)), (max(widths), max(heights))
    return x, PictureTally(smallest, largest, changes, top_level)


def describe_pictures(
    tally: PictureTally, count: int, classes: int, shape: tuple[int, ...]
) -> list[str]:
    """Describe in a line or two what was done to `count` pictures; no line where nothing was.

    `tally` says what they were, `shape` (C, H, W) what they are now.
    """
    height, width = shape[-2:]
    lines = []
    if not tally.smallest == tally.largest == (width, height):
        span = f"of {format_size(tally.smallest)}"
        if tally.smallest != tally.largest:
            span = f"from {format_size(tally.smallest)} to {format_size(tally.largest)}"
        lines.append(
            f"{count} of {classes} classes {span} pixels, resized to {format_size((width, height))}"
        )
    changed = [f"{tally.changes[name]} {words}" for name, words in PICTURE_CHANGES.items()]
    if named := [text for text in changed if not text.startswith("0 ")]:
        lines.append(f"{'; '.join(named)}")
    bits = tally.top_level.bit_length()
    if tally.top_level and bits not in USUAL_BITS:
        lines.append(
            f"those of 16 bits are dark: their brightest pixel is {tally.top_level} of 65535, now "
            f"{tally.top_level / 65535:.2g} of 1; if they hold {bits} bits, multiply their pixels "
            f"by {2 ** (16 - bits)} and save them anew"
        )
    return lines


def format_size(size: tuple[int, int]) -> str:
    """Return 32x24 of a width of 32 and a height of 24."""
    return f"{size[0]}x{size[1]}"


def _decode_file(file: PictureFile, size: int, grey: bool) -> DecodedPicture:
    """Return a picture from a file; PictureFaultError when Pillow cannot read it."""
    Image = import_optional("PIL.Image")  # noqa: N806 - a module of that name
    if file is None:
        raise PictureFaultError("is missing")
    if isinstance(file, Path) and not file.is_file():
        raise PictureFaultError("is no file, or a link to none")
    try:
        with Image.open(file) as picture:
            return _decode_picture(picture, size, grey)
    except PictureFaultError:
        raise
    except Image.UnidentifiedImageError as error:
        raise PictureFaultError("is no image that Pillow reads") from error
    except Image.DecompressionBombError as error:
        limit = f"{2 * Image.MAX_IMAGE_PIXELS / 1e6:.3g} megapixels"
        raise PictureFaultError(
            f"is larger than the {limit} that Pillow opens", f"make them smaller than {limit}"
        ) from error
    except Exception as error:  # damage is met by each of Pillow's decoders in its way
        raise PictureFaultError(f"cannot be read ({describe_unforeseen(error)})") from error


def _decode_picture(picture: "PIL.Image.Image", size: int, grey: bool) -> DecodedPicture:
    """Return a picture the right way up, of 1 or 3 channels, as the settings size it."""
    changes = set()
    if getattr(picture, "is_animated", False):
        changes.add("frames")
    upright, turn = _turn_upright(picture)
    changes |= turn
    top_level = 0
    is_clear = upright.has_transparency_data
    is_map = upright.mode == "I" and picture.format == "PPM"  # Pillow brings it to 16 bits
    if is_map or (upright.mode in DEEP_MODES and not is_clear):
        changes.add("deep")
        levels = np.array(upright).astype(np.float32)
        (bits, *_) = getattr(picture, "tag_v2", {}).get(BITS, (16,))
        top_level = int(levels.max()) if bits == 16 else 0
        pixels = torch.from_numpy(levels / np.float32(2**bits - 1)).clamp(max=1)
    elif (mode := (MODES | ALPHA_MODES).get(upright.mode)) is None:
        allowed = ", ".join([*MODES, *ALPHA_MODES, DEEP_MODES[0]])
        clear = " with transparency" if is_clear else ""
        raise PictureFaultError(f"is of mode {upright.mode}{clear}, must be of {allowed}")
    else:
        if is_clear:
            upright, shows_white = _lay_on_white(upright)
            changes |= {"transparent"} if shows_white else set()
        pixels = torch.from_numpy(np.array(upright.convert(mode)))
    x = pixels[None] if pixels.dim() == 2 else pixels.permute(2, 0, 1)
    if len(x) == 1:
        changes.add("grey")
    elif grey:
        changes.add("colour")
    x = fit_images(x[None], size=size, grey=grey, where="picture")[0]
    return DecodedPicture(x, upright.size, changes, top_level)


def _turn_upright(picture: "PIL.Image.Image") -> tuple["PIL.Image.Image", set[str]]:
    """Return a picture the right way up, and what of `PICTURE_CHANGES` that took.

    EXIF is read and never written: one odd value among many makes that impossible.
    """
    Image = import_optional("PIL.Image")  # noqa: N806 - a module of that name
    turned = getattr(picture, "tag_v2", {}).get(ORIENTATION)  # a TIFF turns itself in load()
    picture.load()
    try:
        if raw := picture.info.get("exif"):
            Image.Exif().load(raw)  # getexif() raises once, and open() may have caught it
        stated = picture.getexif().get(ORIENTATION)
    except Exception:
        return picture, {"unread"}
    if stated in TURNS:
        picture = picture.transpose(Image.Transpose[TURNS[stated]])
    return picture, {"turned"} if stated in TURNS or turned in TURNS else set()


def _lay_on_white(picture: "PIL.Image.Image") -> tuple["PIL.Image.Image", bool]:
    """Return an opaque picture in colours, and whether any white shows through."""
    Image = import_optional("PIL.Image")  # noqa: N806 - a module of that name
    clear = picture.convert("RGBA")
    white = Image.new("RGBA", clear.size, (255, 255, 255, 255))
    white.alpha_composite(clear)
    return white.convert("RGB"), bool(np.array(clear)[..., 3].min() < 255)


def _allocate(count: int, first: Tensor, size: int) -> Tensor:
    """Return room for all pictures of the first one's shape; DataError when there is not enough."""
    try:
        return torch.empty(count, *first.shape, dtype=first.dtype)
    except RuntimeError as error:
        gigabytes = count * first.numel() * first.element_size() / 1e9
        raise DataError(
            f"{count} pictures of {format_size((first.shape[2], first.shape[1]))} need "
            f"{gigabytes:.0f} GB of memory, and data.size is {size}; set it to a smaller side"
        ) from error
