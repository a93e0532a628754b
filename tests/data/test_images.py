"""Image files of every usual kind become arrays; what is no image is named in one line, and nothing is printed."""

import struct
import threading
import warnings
import zlib
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO

import numpy as np
import pytest
from image_files import one_line
from PIL import Image

from perdure.data import images as module
from perdure.data.images import list_images, read_images, scale_images
from perdure.errors import BadData, MissingFile, WrongValue

CHANCE = np.random.RandomState(0)
PIXELS = CHANCE.randint(0, 256, (20, 30, 3)).astype(np.uint8)  # 20 high, 30 wide
COLOR = Image.fromarray(PIXELS)
LOSSLESS = {
    **{name: {} for name in ("a.png", "a.bmp", "a.ppm", "a.tif")},
    "a.TIFF": {"compression": "tiff_lzw"},
    "a.webp": {"lossless": True},
}


def read_image(path, size=None, channels=3):
    images, _, _ = read_images([path], size, channels)
    return images[0]


def png_bomb(width: int, height: int) -> bytes:
    """A PNG of a few bytes that says that it is large."""

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(100))) + chunk(b"IEND", b"")
    )


def planes(image: Image.Image) -> np.ndarray:
    return np.asarray(image).transpose(2, 0, 1)


# --- which files ---


def test_list_is_natural_visible_flat_and_of_images_only(tmp_path):
    wanted = ["img1.PNG", "img02.jpg", "img2.jpg", "img10.webp", "z.Tif"]
    for name in (*wanted, ".hidden.png", "._img1.png", "notes.txt", "img3", "png", "archive.png.zip"):
        (tmp_path / name).touch()
    (tmp_path / "folder.png").mkdir()
    (tmp_path / "folder.png" / "below.png").touch()
    assert [path.name for path in list_images(tmp_path)] == wanted
    assert list_images(tmp_path)[0] == tmp_path / "img1.PNG"
    assert list_images(tmp_path / "folder.png") == [tmp_path / "folder.png" / "below.png"]


def test_list_of_no_folder(tmp_path):
    with pytest.raises(MissingFile, match="absent: no such folder; put it there"):
        list_images(tmp_path / "absent")
    (tmp_path / "file").touch()
    with pytest.raises(BadData, match=r"file: cannot be read .*; check") as caught:
        list_images(tmp_path / "file")
    assert not isinstance(caught.value, MissingFile)


# --- one image ---


@pytest.mark.parametrize("name", LOSSLESS)
def test_lossless_formats(tmp_path, name):
    COLOR.save(tmp_path / name, **LOSSLESS[name])
    found = read_image(tmp_path / name)
    assert found.dtype == np.uint8
    assert found.flags.c_contiguous
    assert np.array_equal(found, planes(COLOR))


def test_jpeg_whatever_its_suffix(tmp_path):
    COLOR.resize((64, 64), Image.Resampling.BICUBIC).save(tmp_path / "a.png", format="JPEG", quality=95)
    with Image.open(tmp_path / "a.png") as decoded:
        assert np.array_equal(read_image(tmp_path / "a.png"), planes(decoded))


def test_gray_from_colors_and_colors_from_gray(tmp_path):
    COLOR.save(tmp_path / "a.png")
    gray = COLOR.convert("L")
    gray.save(tmp_path / "b.pgm")
    assert np.array_equal(read_image(tmp_path / "a.png", channels=1), np.asarray(gray)[None])
    assert np.array_equal(read_image(tmp_path / "b.pgm", channels=1), np.asarray(gray)[None])
    assert np.array_equal(read_image(tmp_path / "b.pgm"), np.stack([np.asarray(gray)] * 3))


def test_palette_and_two_levels(tmp_path):
    palette = COLOR.quantize(16)
    palette.save(tmp_path / "a.png")
    assert np.array_equal(read_image(tmp_path / "a.png"), planes(palette.convert("RGB")))
    COLOR.convert("1").save(tmp_path / "b.png")
    assert set(np.unique(read_image(tmp_path / "b.png", channels=1))) == {0, 255}


def test_first_frame_of_an_animation(tmp_path):
    frames = [Image.new("L", (8, 8), shade) for shade in (10, 200, 90)]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
    assert np.unique(read_image(tmp_path / "a.gif", channels=1)).tolist() == [10]


def drawing(mode: str, ink: tuple[int, ...], clear: tuple[int, ...]) -> Image.Image:
    image = Image.new(mode, (4, 4), clear)
    image.putpixel((1, 1), ink)
    return image


def keyed(mode: str) -> Image.Image:
    """One color stands for nothing, as GIF and simple PNG do it."""
    image = Image.new(mode, (4, 4), 7 if mode in ("P", "L") else (9, 9, 9))
    if mode == "P":
        image.putpalette([0, 0, 0] * 256)
    image.putpixel((1, 1), 0 if mode in ("P", "L") else (0, 0, 0))
    image.info["transparency"] = 7 if mode in ("P", "L") else (9, 9, 9)
    return image


TRANSPARENT = {
    "RGBA": drawing("RGBA", (0, 0, 0, 255), (0, 0, 0, 0)),
    "LA": drawing("LA", (0, 255), (0, 0)),
    "key of a palette": keyed("P"),
    "key of gray": keyed("L"),
    "key of colors": keyed("RGB"),
}


@pytest.mark.parametrize("kind", TRANSPARENT)
@pytest.mark.parametrize("channels", [1, 3])
def test_what_is_transparent_is_white(tmp_path, kind, channels):
    image = TRANSPARENT[kind]
    image.save(tmp_path / "a.png", **({"transparency": image.info["transparency"]} if image.info else {}))
    found = read_image(tmp_path / "a.png", channels=channels)
    assert found.shape == (channels, 4, 4)
    assert (found[:, 1, 1] == 0).all()  # the ink is still there
    assert (np.delete(found.reshape(channels, 16), 5, axis=1) == 255).all()
    Image.new("RGBA", (4, 4), (0, 100, 200, 51)).save(tmp_path / "b.png")  # a fifth
    assert read_image(tmp_path / "b.png")[:, 0, 0].tolist() == [204, 224, 244]


@pytest.mark.parametrize("name", ["a.png", "a.tif", "a.pgm"])
def test_sixteen_bits(tmp_path, name):
    levels = np.array([[0, 128, 129, 257, 32768, 65278, 65535, 256]], np.uint16)
    Image.fromarray(levels).save(tmp_path / name)
    assert read_image(tmp_path / name, channels=1).tolist() == [[[0, 0, 1, 1, 128, 254, 255, 1]]]
    assert read_image(tmp_path / name, channels=3)[2, 0, 6] == 255


def test_cmyk(tmp_path):
    Image.new("CMYK", (8, 8), (0, 255, 255, 0)).save(tmp_path / "a.jpg", quality=100)
    red, green, blue = read_image(tmp_path / "a.jpg")[:, 4, 4].tolist()
    assert red > 250
    assert max(green, blue) < 5


@pytest.mark.parametrize("name", ["a.jpg", "a.png", "a.webp", "a.tif"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_upright_as_exif_says(tmp_path, name, orientation):
    # What EXIF means: where row 0 and column 0 of the file are to be seen.
    upright = np.zeros((16, 32), np.uint8)
    upright[:8, :8] = 255  # top left
    upright[:8, 8:] = 120  # top
    turned = {
        1: lambda a: a,
        2: lambda a: a[:, ::-1],  # row 0 is the top, column 0 the right side
        3: lambda a: a[::-1, ::-1],  # bottom, right
        4: lambda a: a[::-1],  # bottom, left
        5: lambda a: a.T,  # left, top
        6: lambda a: np.rot90(a),  # right, top
        7: lambda a: a[::-1, ::-1].T,  # right, bottom
        8: lambda a: np.rot90(a, -1),  # left, bottom
    }[orientation](upright)
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(np.ascontiguousarray(turned)).save(tmp_path / name, exif=exif)
    found = read_image(tmp_path / name, channels=1)[0]
    assert found.shape == (16, 32)
    assert np.abs(found.astype(int) - upright).max() < 40


def test_damaged_exif_does_no_harm(tmp_path):
    COLOR.save(tmp_path / "a.png", exif=b"Exif\0\0MM\0*\xff\xff\xff\xff")
    COLOR.save(tmp_path / "b.png", exif=b"Exif\0\0nonsense")
    for name in ("a.png", "b.png"):
        assert np.array_equal(read_image(tmp_path / name), planes(COLOR))


def test_scaled_by_the_short_side_and_cut_in_the_middle(tmp_path):
    wide = np.zeros((20, 60), np.uint8)
    wide[:, 20:40] = 200  # just the middle square
    Image.fromarray(wide).save(tmp_path / "a.png")
    Image.fromarray(wide.T.copy()).save(tmp_path / "b.png")
    for name in ("a.png", "b.png"):
        found = read_image(tmp_path / name, size=10)
        assert found.shape == (3, 10, 10)
        assert (np.abs(found.astype(int) - 200) < 15).all()  # the filter also sees a little of what lies outside
    assert read_image(tmp_path / "a.png", size=50).shape == (3, 50, 50)


def test_scaled_by_lanczos(tmp_path):
    gray = Image.fromarray(PIXELS[:, :20, 0].copy())
    gray.save(tmp_path / "a.png")
    found = read_image(tmp_path / "a.png", 32, 1)
    assert np.array_equal(found[0], np.asarray(gray.resize((32, 32), Image.Resampling.LANCZOS)))
    assert np.array_equal(read_image(tmp_path / "a.png", 20, 1)[0], np.asarray(gray))  # of that size: untouched


def test_large_jpeg_is_scaled_well(tmp_path):
    fine = Image.fromarray(CHANCE.randint(0, 256, (100, 100, 3)).astype(np.uint8))
    large = fine.resize((480, 480), Image.Resampling.BICUBIC)
    large.save(tmp_path / "a.jpg", quality=95)
    slow = large.resize((96, 96), Image.Resampling.LANCZOS)
    assert np.abs(read_image(tmp_path / "a.jpg", 96).astype(int) - planes(slow)).mean() < 2  # 5 without the margin


@pytest.mark.parametrize(
    ("asked", "says"),
    [({"channels": 2}, "channels=2 .* use 1"), ({"size": 0}, "size=0 .* use 1"), ({"size": 100_000}, "use 1 to 4096")],
)
def test_asked_wrongly(asked, says):
    with pytest.raises(WrongValue, match=says):
        read_images([], **({"size": 8, "channels": 3} | asked))


# --- what is no image ---


def saved(name: str, image: Image.Image = COLOR) -> bytes:
    file = BytesIO()
    image.save(file, format={"jpg": "JPEG", "tif": "TIFF"}.get(name, name.upper()))
    return file.getvalue()


FORMATS = ("png", "jpg", "bmp", "gif", "webp", "ppm", "tif")
DAMAGED = "damaged|truncated|known format"
BAD = {
    "empty": (b"", "not an image of a known format"),
    "text": (b"<html>404 Not Found</html>", "not an image of a known format"),
    "a program for printers": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n", "not an image"),
    "only a signature": (b"\x89PNG\r\n\x1a\n", DAMAGED),
    "wrong checksum": (saved("png").replace(b"IDAT", b"IDAT\xff", 1), DAMAGED),
    "bomb that pillow warns of": (png_bomb(10_000, 10_000), "10000×10000 pixels, more than"),
    "bomb that pillow refuses": (png_bomb(60_000, 60_000), "more pixels"),
    "a screen of many pixels in 35 bytes": (
        b"GIF89a" + struct.pack("<HH", 9400, 9400) + b"\x80\0\0" + bytes(6)
        + b"\x2c" + struct.pack("<4HB", 0, 0, 1, 1, 0) + b"\2\2\x44\1\0\x3b",
        "9400×9400 pixels in 35 bytes, which is no photograph"),
    "no pixels": (b"P6 0 5 255\n", DAMAGED),
    "floats": (saved("tif", Image.new("F", (4, 4), 0.5)), "no range is agreed"),
    "32 bits": (saved("tif", Image.new("I", (4, 4), 70_000)), "no range is agreed"),
    **{f"{name} cut in half": (saved(name)[: len(saved(name)) // 2], DAMAGED) for name in FORMATS},
    **{f"{name} of a header": (saved(name)[:24], DAMAGED) for name in FORMATS},
}  # fmt: skip


@pytest.fixture
def silent(capfd):
    """Fails if anything is printed, by libraries in C too, or warned, or if filters of warnings are left behind."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        before = warnings.filters[:]
        yield
        assert warnings.filters == before
    assert not warned
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("case", BAD)
@pytest.mark.usefixtures("silent")
def test_bad_image(tmp_path, case):
    content, says = BAD[case]
    path = tmp_path / "a.png"
    path.write_bytes(content)
    for size in (None, 16):
        with pytest.raises(BadData, match=says) as caught:
            read_image(path, size)
        one_line(caught.value, path)


def test_absent_and_folder(tmp_path):
    with pytest.raises(MissingFile, match="no such file; put it there"):
        read_image(tmp_path / "absent.png")
    with pytest.raises(BadData, match=r"cannot be read .*; check") as caught:
        read_image(tmp_path)
    assert not isinstance(caught.value, MissingFile)


def test_name_with_a_line_break(tmp_path):
    path = tmp_path / "a\nb\udcff.png"
    path.write_bytes(b"")
    with pytest.raises(BadData, match=r"a\\nb\\udcff.png'?: not an image") as caught:
        read_image(path)
    assert str(caught.value).isprintable()


# --- many images ---


@pytest.fixture
def forty(tmp_path):
    """Forty gray images of one level each, 0 to 39."""
    paths = [tmp_path / f"{level}.png" for level in range(40)]
    for level, path in enumerate(paths):
        Image.new("L", (6, 5), level).save(path)
    return paths


@pytest.mark.parametrize("size", [None, 4])
def test_many_in_their_order(forty, size):
    images, rows, unreadable = read_images(forty[::-1], size, 1)
    assert images.dtype == np.uint8
    assert images.shape == ((40, 1, 4, 4) if size else (40, 1, 5, 6))
    assert images[:, 0, 2, 2].tolist() == list(range(39, -1, -1))
    assert (images == images[:, :1, :1, :1]).all()
    assert (rows, unreadable) == (list(range(40)), [])


def test_ctrl_c_does_not_wait_for_all_that_is_left(forty, monkeypatch):
    class Interrupted(ThreadPoolExecutor):
        def map(self, *asked):
            yield next(super().map(*asked))
            raise KeyboardInterrupt

    threads, decoded = threading.active_count(), []
    decode = module._decode
    monkeypatch.setattr(module, "ThreadPoolExecutor", Interrupted)
    monkeypatch.setattr(module, "_decode", lambda path, *asked: decoded.append(path) or decode(path, *asked))
    with pytest.raises(KeyboardInterrupt):
        read_images(forty * 100, 4, 1)
    assert threading.active_count() == threads
    assert 0 < len(decoded) < 2000  # of 4000


def test_none_at_all():
    assert read_images([], 8, 3)[0].shape == (0, 3, 8, 8)
    images, rows, unreadable = read_images([], None, 1)
    assert (len(images), rows, unreadable) == (0, [], [])


def spoil(paths) -> None:
    for path in paths:
        path.write_bytes(path.read_bytes()[:40])


@pytest.mark.parametrize("size", [None, 4])
@pytest.mark.usefixtures("silent")
def test_unreadable_ones_are_all_named_at_once(forty, size):
    forty[30].unlink()
    spoil([forty[0]])
    forty[7].write_bytes(png_bomb(10_000, 10_000))
    with pytest.raises(
        BadData, match=r"3 of 40 images cannot be read: 0\.png, 7\.png, 30\.png; remove .*skip"
    ) as caught:
        read_images(forty, size, 1)
    one_line(caught.value, forty[0].parent)
    spoil(forty[10:14])
    with pytest.raises(BadData, match=r"7 of 40 .*: 0\.png, 7\.png, 10\.png, 11\.png, 12\.png and 2 more; "):
        read_images(forty, size, 1)
    other = forty[0].parent / "b" / "x.png"
    other.parent.mkdir()
    other.touch()
    with pytest.raises(BadData, match=rf"^{forty[0].parent}: 2 of 3 .*: 0\.png, b.x\.png; "):
        read_images([forty[0], forty[1], other], 4, 1)


@pytest.mark.parametrize("size", [None, 4])
@pytest.mark.usefixtures("silent")
def test_unreadable_ones_are_left_out_if_asked(forty, size):
    bad = [forty[0], forty[7], forty[30]]
    spoil(bad)
    images, rows, unreadable = read_images(forty, size, 1, skip_unreadable=True)
    kept = [level for level in range(40) if level not in (0, 7, 30)]
    assert images[:, 0, 2, 2].tolist() == kept
    assert rows == kept
    assert unreadable == bad
    spoil(forty)
    images, rows, unreadable = read_images(forty, size, 1, skip_unreadable=True)
    assert (len(images), rows, unreadable) == (0, [], forty)


def test_different_sizes(forty):
    Image.new("L", (9, 8)).save(forty[20])
    spoil(forty[:1])
    said = rf"{forty[1]} is 5×6 and {forty[20]} is 8×9; scale all to one size"
    with pytest.raises(BadData, match=said):
        read_images(forty, None, 1, skip_unreadable=True)
    with pytest.raises(BadData, match="1 of 40 images cannot be read"):
        read_images(forty, None, 1)
    assert read_images(forty[1:], 4, 1)[0].shape == (39, 1, 4, 4)


def test_more_than_the_machine_has(forty, monkeypatch):
    monkeypatch.setattr(module, "machine_memory", lambda: 40 * 16 * 16 - 1)
    with pytest.raises(BadData, match="40 images of 1 × 16 × 16 bytes do not fit in memory; scale them"):
        read_images(forty, 16, 1, skip_unreadable=True)


def test_more_than_the_memory_holds(forty, monkeypatch):
    def full(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(np, "empty", full)
    with pytest.raises(BadData, match="40 images of 1 × 5 × 6 bytes do not fit in memory; scale them"):
        read_images(forty, None, 1)


# --- arrays ---


def test_scale_images_as_pictures_are(tmp_path):
    COLOR.save(tmp_path / "a.png")
    both = np.stack([planes(COLOR), planes(COLOR)[:, ::-1, ::-1]])
    scaled = scale_images(both, 12)
    assert scaled.dtype == np.uint8
    assert np.array_equal(scaled[0], read_image(tmp_path / "a.png", 12))
    assert not np.array_equal(scaled[0], scaled[1])
    assert scale_images(scaled, 12) is scaled
