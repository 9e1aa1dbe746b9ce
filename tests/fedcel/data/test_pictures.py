"""Pictures of all kinds: what each becomes, what is said of it, and what is refused."""

import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from fedcel.data import to_floats
from fedcel.data.pictures import PictureFile, decode_pictures, describe_pictures
from fedcel.errors import DataError

GREY = np.arange(20, dtype=np.uint8).reshape(5, 4) * 12
RED = np.zeros((5, 4, 3), dtype=np.uint8) + np.array([200, 0, 0], dtype=np.uint8)


def decode(
    paths: list[Path], *, size: int = 0, grey: bool = False
) -> tuple[torch.Tensor, list[str]]:
    """Return the images of files as floats, and what is said of them."""
    files: list[tuple[str, PictureFile]] = [(path.name, path) for path in paths]
    x, tally = decode_pictures(files, len(paths), size=size, grey=grey)
    return to_floats(x), describe_pictures(tally, len(paths), 2, tuple(x.shape[1:]))


def half_clear(mode: str) -> Image.Image:
    """Return a picture whose upper row lets everything through, whose second row half of it."""
    picture = Image.fromarray(RED).convert(mode)
    alpha = np.full((5, 4), 255, dtype=np.uint8)
    alpha[0], alpha[1] = 0, 128
    picture.putalpha(Image.fromarray(alpha))
    return picture


@pytest.mark.parametrize(
    ("name", "mode", "tolerance"),
    [
        ("a.png", "RGB", 0),
        ("a.png", "P", 0),
        ("a.gif", "P", 0),
        ("a.bmp", "RGB", 0),
        ("a.tif", "RGB", 0),
        ("a.tif", "CMYK", 0),
        ("a.webp", "RGB", 4),
        ("a.jpg", "RGB", 4),
        ("a.jpg", "CMYK", 4),
        ("a.png", "RGBA", 0),
    ],
)
def test_colours_of_every_format(tmp_path: Path, name: str, mode: str, tolerance: int) -> None:
    """A red picture is red, to the last level where the format loses nothing; nothing is said."""
    red = Image.fromarray(RED)
    (red.quantize(4) if mode == "P" else red.convert(mode)).save(tmp_path / name)
    x, notes = decode([tmp_path / name])
    want = torch.from_numpy(RED.transpose(2, 0, 1).astype(np.float32) / 255)
    assert (x[0] - want).abs().max() * 255 <= tolerance and x.shape == (1, 3, 5, 4)
    assert notes == []


@pytest.mark.parametrize("name", ["a.png", "a.jpg", "a.tif", "a.bmp"])
def test_grey_of_every_format(tmp_path: Path, name: str) -> None:
    Image.fromarray(GREY).save(tmp_path / name, quality=100)
    x, notes = decode([tmp_path / name])
    assert x.shape == (1, 1, 5, 4) and notes == []
    assert (x[0, 0] * 255 - torch.from_numpy(GREY)).abs().max() <= (2 if name == "a.jpg" else 0)


def test_black_and_white(tmp_path: Path) -> None:
    """One bit a pixel: 0 and 1."""
    Image.fromarray(GREY).convert("1", dither=Image.Dither.NONE).save(tmp_path / "a.png")
    x, _ = decode([tmp_path / "a.png"])
    assert torch.equal(x[0, 0], torch.from_numpy((GREY >= 128).astype(np.float32)))


@pytest.mark.parametrize("name", ["a.png", "a.tif"])
def test_sixteen_bits_keep_their_range(tmp_path: Path, name: str) -> None:
    """Level 65535 is 1, not cut off at 255; it is said."""
    levels = np.array([[0, 255, 32768, 65535]], dtype=np.uint16)
    Image.fromarray(levels).save(tmp_path / name)
    x, notes = decode([tmp_path / name])
    assert x[0, 0, 0].tolist() == pytest.approx([0, 255 / 65535, 32768 / 65535, 1], abs=1e-7)
    assert notes == ["1 of 16 bits scaled to the range of the others"]


@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_transparency_is_laid_on_white(tmp_path: Path, mode: str) -> None:
    """Wholly clear is white, half clear is half way to it; grey stays grey."""
    half_clear(mode).save(tmp_path / "a.png")
    x, notes = decode([tmp_path / "a.png"])
    level = 200 if mode == "RGB" else 60  # red's luminance
    assert (x[0, :, 0] == 1).all() and len(x[0]) == (3 if mode == "RGB" else 1)
    assert x[0, 0, 1, 0] * 255 == pytest.approx(255 - (255 - level) * 128 / 255, abs=1)
    assert x[0, 0, 2:] * 255 == pytest.approx(np.full((3, 4), level), abs=1e-4)
    assert notes == ["1 with transparency laid on white"]


def test_a_clear_colour_of_a_palette(tmp_path: Path) -> None:
    """The colour that a palette names as clear is white."""
    picture = Image.fromarray(GREY).convert("P")
    picture.save(tmp_path / "a.gif", transparency=picture.getpixel((0, 0)))
    x, notes = decode([tmp_path / "a.gif"])
    assert x[0, :, 0, 0].tolist() == [1, 1, 1] and "transparency" in notes[0]


def test_grey_among_colours_becomes_colour(tmp_path: Path) -> None:
    """Whichever comes first; with data.grey it is the other way round."""
    Image.fromarray(GREY).save(tmp_path / "grey.png")
    Image.fromarray(RED).save(tmp_path / "red.png")
    paths = [tmp_path / "grey.png", tmp_path / "red.png", tmp_path / "grey.png"]
    for order in (paths, paths[1:]):
        x, notes = decode(order)
        grey = x[-1]
        assert x.shape[1:] == (3, 5, 4) and notes == [f"{len(order) - 1} grey taken as colour"]
        assert torch.equal(grey, torch.from_numpy(GREY.astype(np.float32) / 255).expand(3, 5, 4))
    assert torch.equal(decode(paths)[0][0], decode(paths)[0][2])
    x, notes = decode(paths, grey=True)
    assert x.shape == (3, 1, 5, 4) and notes == ["1 colour taken as grey"]


def test_all_sizes_become_one(tmp_path: Path) -> None:
    """Least and largest width, and height: a wide picture may be the lowest of all."""
    for name, size in (("a.png", (300, 2)), ("b.png", (30, 200)), ("c.png", (40, 40))):
        Image.fromarray(RED).resize(size).save(tmp_path / name)
    x, notes = decode([tmp_path / name for name in ("a.png", "b.png", "c.png")], size=4)
    assert x.shape == (3, 3, 4, 4) and notes == [
        "3 of 2 classes from 30x2 to 300x200 pixels, resized to 4x4"
    ]
    assert (x - torch.tensor([200 / 255, 0, 0]).view(3, 1, 1)).abs().max() < 1e-6


def test_several_frames(tmp_path: Path) -> None:
    """The first is taken, and it is said."""
    first, second = Image.fromarray(RED), Image.fromarray(RED[..., ::-1].copy())
    first.save(tmp_path / "a.gif", save_all=True, append_images=[second])
    x, notes = decode([tmp_path / "a.gif"])
    assert x[0, 0, 0, 0] * 255 == pytest.approx(200)
    assert notes == ["1 with several frames, of which the first is taken"]


def test_sizes_that_differ_are_all_named(tmp_path: Path) -> None:
    """With data.size 0: five of them, how many more, and the remedy."""
    for number in range(9):
        Image.fromarray(GREY).resize((4, 5 + (number > 0))).save(tmp_path / f"{number}.png")
    with pytest.raises(DataError, match=r"8 of 9 pictures differ in size from 0.png of 4x5") as got:
        decode([tmp_path / f"{number}.png" for number in range(9)])
    assert "5.png of 4x6; and 3 more; set data.size to the side" in str(got.value)
    assert "6.png" not in str(got.value)


def test_all_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    """Text, nothing, half a picture, a link to nothing, another mode: each with its fault."""
    noise = np.random.default_rng(0).integers(0, 256, (30, 30), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "0.png")
    (tmp_path / "1.png").write_bytes((tmp_path / "0.png").read_bytes()[:500])
    (tmp_path / "2.txt").write_text("about these pictures")
    (tmp_path / "3.png").touch()
    (tmp_path / "4.png").symlink_to(tmp_path / "nowhere.png")
    Image.fromarray(GREY).convert("I").save(tmp_path / "5.tif")
    paths = sorted(tmp_path.iterdir())
    with pytest.raises(DataError) as got:
        decode(paths, size=4)
    for words in (
        "5 of 6 pictures cannot be used: ",
        "1.png cannot be read (",
        "2.txt is no image that Pillow reads",
        "3.png is no image that Pillow reads",
        "4.png is no file, or a link to none",
        "5.tif is of mode I, must be of 1, L, P, RGB, CMYK, YCbCr, LA, PA, RGBA, I;16; remove",
    ):
        assert words in str(got.value)
    assert "0.png" not in str(got.value)
    with pytest.raises(DataError, match=r"7 of 8 .*5.tif is of mode.*; and 2 more; remove"):
        decode([*paths, *paths[1:3]], size=4)


def test_more_than_the_memory_holds(tmp_path: Path) -> None:
    """Photographs as they are: how much it would be, and the remedy."""
    Image.fromarray(RED).save(tmp_path / "a.png")
    with pytest.raises(DataError, match=r"4x5 need 6\d+ GB of memory, and data.size is 0; set it"):
        decode_pictures([("a.png", tmp_path / "a.png")], 10**15)


def tag_file(*tags: tuple[int, int, int, bytes], data: bytes = b"") -> bytes:
    """Return a TIFF of these tags (number, type, count, value), with data after its header."""
    entries = b"".join(struct.pack("<HHI4s", *tag) for tag in tags)
    directory = struct.pack("<H", len(tags)) + entries + bytes(4)
    return b"II*\0" + struct.pack("<I", 8 + len(data)) + data + directory


@pytest.mark.parametrize("odd", [0x0100, 0x011A, 0xA005])
def test_an_odd_tag_beside_the_orientation(tmp_path: Path, odd: int) -> None:
    """A number that is text: a viewer turns the photograph, and so does the reader."""
    exif = tag_file((0x0112, 3, 1, b"\x06\0"), (odd, 2, 1, b"x"))
    Image.fromarray(np.rot90(RED)).save(tmp_path / "a.jpg", exif=b"Exif\0\0" + exif, quality=100)
    x, notes = decode([tmp_path / "a.jpg"])
    assert x.shape == (1, 3, 5, 4) and notes == ["1 turned upright as their EXIF says"]


@pytest.mark.parametrize("orientation", range(10))
@pytest.mark.parametrize("name", ["a.png", "a.tif"])
def test_orientations_turn_as_pillow_does(tmp_path: Path, name: str, orientation: int) -> None:
    """Each of the eight, once; 0, 1 and 9 turn nothing, and nothing is said."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(GREY).save(tmp_path / name, exif=exif)
    with Image.open(tmp_path / name) as picture:
        want = np.array(ImageOps.exif_transpose(picture))
    x, notes = decode([tmp_path / name])
    assert torch.equal(x[0, 0], torch.from_numpy(want.astype(np.float32) / 255))
    is_turned = 2 <= orientation <= 8
    assert notes == ["1 turned upright as their EXIF says"] * is_turned


def test_exif_that_cannot_be_read(tmp_path: Path) -> None:
    """The picture is as it is stored, and it is said."""
    Image.fromarray(RED).save(tmp_path / "a.jpg", exif=b"Exif\0\0XX*\0damaged")
    x, notes = decode([tmp_path / "a.jpg"])
    assert x.shape == (1, 3, 5, 4)
    assert notes == ["1 with EXIF that cannot be read, taken as they are stored"]


def test_twelve_bits_in_sixteen_are_told(tmp_path: Path) -> None:
    """The brightest pixel of all decides; sixteen times as bright they are whole."""
    for number, top in enumerate((4095, 300)):
        levels = np.array([[0, top // 2, top]], dtype=np.uint16)
        Image.fromarray(levels).save(tmp_path / f"{number}.png")
    paths = [tmp_path / "0.png", tmp_path / "1.png"]
    x, notes = decode(paths)
    assert x.max().item() == pytest.approx(4095 / 65535)
    assert notes[1:] == [
        "those of 16 bits are dark: their brightest pixel is 4095 of 65535, now 0.062 of 1; if "
        "they hold 12 bits, multiply their pixels by 16 and save them anew"
    ]
    Image.fromarray(np.array([[0, 2047, 4095]], dtype=np.uint16) * 16).save(paths[0])
    x, notes = decode(paths)
    assert x.max().item() == pytest.approx(1, abs=3e-4) and len(notes) == 1


def test_twelve_bits_that_the_file_states(tmp_path: Path) -> None:
    """A TIFF of 12 bits a sample: 4095 is 1, with nothing to guess."""
    values = ((256, 2), (257, 1), (258, 12), (259, 1), (262, 1), (273, 8), (277, 1), (278, 1))
    tags = [(tag, 3, 1, struct.pack("<I", value)) for tag, value in (*values, (279, 3))]
    (tmp_path / "a.tif").write_bytes(tag_file(*tags, data=b"\xff\xf8\x00"))
    x, notes = decode([tmp_path / "a.tif"])
    assert x[0, 0, 0].tolist() == pytest.approx([1, 2048 / 4095], abs=1e-6)
    assert notes == ["1 of 16 bits scaled to the range of the others"]


@pytest.mark.parametrize(
    "error", [struct.error("bad"), IndexError("bad"), RuntimeError("bad"), NotImplementedError()]
)
def test_whatever_a_decoder_raises_names_the_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Each decoder meets damage in its way."""

    def fail(self: object) -> None:
        raise error

    Image.fromarray(RED).save(tmp_path / "a.png")
    monkeypatch.setattr("PIL.PngImagePlugin.PngImageFile.load", fail)
    with pytest.raises(DataError, match=f"a.png cannot be read .*{type(error).__name__}|bad"):
        decode([tmp_path / "a.png"])


def test_a_picture_too_large_is_told_to_become_smaller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight bits would not help."""
    Image.fromarray(RED).save(tmp_path / "a.png")
    monkeypatch.setattr("PIL.Image.MAX_IMAGE_PIXELS", 9)
    with pytest.raises(DataError, match=r"a.png is larger than the 1\.8e-05 megapixels") as got:
        decode([tmp_path / "a.png"])
    assert "make them smaller than" in str(got.value) and "8 bits" not in str(got.value)


def test_a_map_of_twelve_bits(tmp_path: Path) -> None:
    """A PGM states its brightest level: 4095 is 1."""
    (tmp_path / "a.pgm").write_bytes(b"P5 2 1 4095\n" + struct.pack(">2H", 4095, 1024))
    x, notes = decode([tmp_path / "a.pgm"])
    assert x[0, 0, 0].tolist() == pytest.approx([1, 1024 / 4095], abs=1e-4)
    assert notes == ["1 of 16 bits scaled to the range of the others"]
