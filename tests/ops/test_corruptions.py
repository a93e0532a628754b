"""Corruptions: they grow with severity, keep images images, and do what their names say."""

from io import BytesIO
from itertools import pairwise

import numpy as np
import pytest
import torch
from PIL import Image

from perdure.data.benchmarks.six import six
from perdure.errors import UnknownName, WrongValue
from perdure.ops.corruptions import _BRIGHTNESS_STEPS, _COLOR_STEPS, _KINDS, KINDS, SEVERITIES, corrupt
from perdure.seeding import generator

BLURS = ("gaussian-blur", "defocus-blur", "motion-blur")


@pytest.fixture(scope="module")
def photos():
    """Fifty small photographs of five classes."""
    return six(seed=1, tasks=1).tasks[0].test.pixels(slice(None, None, 5))


def corrupted(x, kind, severity):
    return corrupt(x, kind, severity, generator(0, kind))


def distance(x, kind, severity):
    return float((corrupted(x, kind, severity) - x).abs().mean())


@pytest.mark.parametrize("kind", KINDS)
def test_distance_grows_with_severity(photos, kind):
    found = [distance(photos, kind, severity) for severity in SEVERITIES]
    assert found[0] > 0.003
    assert all(after > 1.05 * before for before, after in pairwise(found)), found


@pytest.mark.parametrize("kind", sorted({*KINDS} - {"saturation"}))
def test_distance_grows_on_grey_photos_too(photos, kind):
    found = [distance(photos.mean(1, keepdim=True), kind, severity) for severity in SEVERITIES]
    assert all(after > before > 0 for before, after in pairwise(found)), found


@pytest.mark.parametrize("shape", [(2, 3, 32, 32), (2, 1, 28, 28), (1, 3, 13, 22), (2, 1, 5, 3), (1, 1, 1, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", KINDS)
def test_images_of_any_size_stay_images(kind, shape, dtype):
    x = torch.rand(shape, generator=generator(0, "images"), dtype=dtype)
    before = x.clone()
    for severity in SEVERITIES:
        found = corrupted(x, kind, severity)
        assert found.shape == x.shape
        assert found.dtype == dtype
        assert 0 <= float(found.min()) <= float(found.max()) <= 1  # false for NaN
    assert torch.equal(x, before)


@pytest.mark.parametrize("kind", KINDS)
def test_chance_decides(photos, kind):
    x = photos[:4]
    first, again = (corrupt(x, kind, 3, generator(0, "a")) for _ in range(2))
    assert torch.equal(first, again)
    drawn = kind in ("gaussian-noise", "shot-noise", "impulse-noise", "motion-blur", "fog")
    assert torch.equal(first, corrupt(x, kind, 3, generator(0, "b"))) is not drawn


def test_global_chance_is_left_alone(photos):
    before = torch.get_rng_state()
    for kind in KINDS:
        corrupted(photos[:2], kind, 5)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("severity", [0, 6, 2.5])
def test_wrong_severity(photos, severity):
    with pytest.raises(WrongValue, match=f"severity={severity} is not allowed; use 1 to 5"):
        corrupt(photos, "fog", severity, torch.Generator())


def test_wrong_kind_and_wrong_images(photos):
    with pytest.raises(UnknownName, match=r"unknown corruption 'jpg'; did you mean jpeg\?"):
        corrupt(photos, "jpg", 1, torch.Generator())
    for wrong in (photos[0], photos.to(torch.uint8), photos[:, :2]):
        with pytest.raises(WrongValue, match="must be floats"):
            corrupt(wrong, "fog", 1, torch.Generator())


# --- each by itself ---


def grey(value, n=40, side=32):
    return torch.full((n, 1, side, side), value, dtype=torch.float64)


def test_noise_has_its_moments():
    found = corrupted(grey(0.5), "gaussian-noise", 5)
    assert float(found.std()) == pytest.approx(0.10, rel=0.02)
    found = corrupted(grey(0.5), "shot-noise", 5)  # 25 photons come, give or take 5, of 50
    assert float(found.mean()) == pytest.approx(0.5, abs=0.002)
    assert float(found.std()) == pytest.approx(0.1, rel=0.02)
    found = corrupted(grey(0.5), "impulse-noise", 5)
    assert [float((found == value).double().mean()) for value in (0, 1)] == pytest.approx([0.035, 0.035], rel=0.1)
    assert set(found.unique().tolist()) == {0.0, 0.5, 1.0}


# What the five severities do, measured on images made for it. Where CIFAR-C has the same corruption, these are the
# sizes of Hendrycks and Dietterich (`make_cifar_c.py`); the others are ours, and figures made with them depend on them.
EFFECTS = {
    "gaussian-noise": (0.04, 0.06, 0.08, 0.09, 0.10),  # CIFAR-C: standard deviation
    "shot-noise": (500, 250, 100, 75, 50),  # CIFAR-C: photons
    "impulse-noise": (0.01, 0.02, 0.03, 0.05, 0.07),  # CIFAR-C: share
    "gaussian-blur": (0.4, 0.6, 0.7, 0.8, 1.0),  # CIFAR-C: deviation in pixels
    "brightness": (0.05, 0.1, 0.15, 0.2, 0.3),  # CIFAR-C: added
    "contrast": (0.75, 0.5, 0.4, 0.3, 0.15),  # CIFAR-C: share that is left
    "defocus-blur": (0.7, 0.9, 1.2, 1.6, 2.1),  # ours: radius in pixels
    "motion-blur": (2.0, 3.0, 4.0, 5.0, 6.5),  # ours: length in pixels
    "saturation": (1.5, 2.0, 3.0, 4.0, 6.0),  # ours: how many times as far from grey
    "fog": (0.15, 0.3, 0.45, 0.65, 0.9),  # ours: density
    "pixelate": (24, 19, 16, 13, 10),  # ours: pixels that are left of 32
}


def test_sizes_are_those_written_here():
    """To the last digit, which no measurement of noise tells."""
    noises = ("gaussian-noise", "shot-noise", "impulse-noise")
    assert {kind: _KINDS[kind][1] for kind in noises} == {kind: EFFECTS[kind] for kind in noises}


def measured(kind, severity):
    """The size of an effect, from images before and after."""
    if kind in BLURS:  # on images five times as large, where a pixel matters less
        point = grey(0.0, 1, 161)
        point[:, :, 80, 80] = 1
        squared = float(spread(corrupted(point, kind, severity)).mean()) * 32**2
        return (squared * {"gaussian-blur": 1 / 2, "defocus-blur": 2, "motion-blur": 12}[kind]) ** 0.5
    if kind == "saturation":
        x = torch.tensor([0.52, 0.5, 0.49], dtype=torch.float64).view(1, 3, 1, 1).expand(1, 3, 8, 8)
        return float((corrupted(x, kind, severity).std(1) / x.std(1)).mean())
    if kind == "pixelate":
        ramp = torch.linspace(0, 1, 32, dtype=torch.float64).expand(1, 1, 32, 32)
        return len(corrupted(ramp, kind, severity)[0, 0, 0].unique())
    if kind == "contrast":
        x = torch.rand(4, 1, 32, 32, generator=generator(0, "x"), dtype=torch.float64)
        return float(corrupted(x, kind, severity).std() / x.std())
    found = corrupted(grey(0.0 if kind == "fog" else 0.5, 100), kind, severity)
    return {
        "gaussian-noise": lambda: float(found.std()),
        "shot-noise": lambda: 0.5 / float(found.var()),
        "impulse-noise": lambda: float((found != 0.5).double().mean()),
        "brightness": lambda: float(found.mean()) - 0.5,
        "fog": lambda: -np.log(1 - float(found.max())) / 2,
    }[kind]()


@pytest.mark.parametrize("kind", EFFECTS)
def test_every_severity_has_its_size(kind):
    found = [measured(kind, severity) for severity in SEVERITIES]
    off = {"impulse-noise": 0.1, "motion-blur": 0.05}  # a thousand pixels of 100000; a line is shared out among pixels
    assert found == pytest.approx(EFFECTS[kind], rel=off.get(kind, 0.03))


def test_every_corruption_has_its_size_somewhere():
    assert {*EFFECTS} == {*KINDS} - {"jpeg"}  # which is compared with a library below


@pytest.mark.parametrize("kind", BLURS)
def test_blurs_of_small_images_are_as_wide_as_those_of_32_pixels(kind):
    points = [grey(0.0, 3, side) for side in (17, 33)]
    for point in points:
        point[:, :, point.shape[2] // 2, point.shape[2] // 2] = 1
    small, large = (corrupted(point, kind, 5) for point in points)
    torch.testing.assert_close(small, large[:, :, 8:25, 8:25], rtol=0, atol=0.01)


@pytest.mark.parametrize("kind", BLURS)
def test_blurs_keep_light_and_evenness(kind):
    assert torch.allclose(corrupted(grey(0.3, 2), kind, 5), grey(0.3, 2))
    point = grey(0.0, 6)
    point[:, :, 16, 16] = 1
    found = corrupted(point, kind, 5)
    assert torch.allclose(found.sum((1, 2, 3)), torch.ones(6, dtype=torch.float64))
    assert float(found.max()) < 0.3
    assert torch.allclose(found[:, :, 1:, 1:], found[:, :, 1:, 1:].flip(2, 3))  # about the point


def spread(images):
    """Mean squared distance (n,) of the light in an image from its middle, in units of the image's side."""
    line = (torch.arange(images.shape[-1], dtype=images.dtype) + 0.5) / images.shape[-1] - 0.5
    squared = line[:, None].square() + line.square()
    return (images * squared).sum((1, 2, 3)) / images.sum((1, 2, 3))


@pytest.mark.parametrize(
    ("kind", "squared"),
    [
        ("gaussian-blur", 2 * 1.0**2),  # two directions
        ("defocus-blur", 2.1**2 / 2),  # of a disk
        ("motion-blur", 6.5**2 / 12),  # of a line
    ],
)
def test_blurs_are_as_wide_as_they_say_and_scale_with_the_image(kind, squared):
    for side in (33, 99):
        point = grey(0.0, 3, side)
        point[:, :, side // 2, side // 2] = 1
        found = spread(corrupted(point, kind, 5)) * 32**2
        assert found.tolist() == pytest.approx([squared] * 3, rel=0.3 if side == 33 else 0.06)


def test_motion_is_along_a_line():
    point = grey(0.0, 8, 33)
    point[:, :, 16, 16] = 1
    line, slopes = torch.arange(-16.0, 17, dtype=torch.float64), []
    for image in corrupted(point, "motion-blur", 5)[:, 0]:
        rows, columns = (image.sum(1) * line**2).sum(), (image.sum(0) * line**2).sum()
        mixed = (image * line[:, None] * line).sum()
        narrow, wide = torch.linalg.eigvalsh(torch.tensor([[rows, mixed], [mixed, columns]]))
        assert wide > 5 * narrow
        slopes.append(float(mixed))
    assert min(slopes) < -1 < 1 < max(slopes)  # up to the right and down to the right


def test_contrast_keeps_means_and_saturation_keeps_grey(photos):
    x = photos.double()
    found = corrupted(x, "contrast", 4)
    assert torch.allclose(found.mean((2, 3)), x.mean((2, 3)))
    assert torch.allclose(found.std((2, 3)), 0.3 * x.std((2, 3)))
    plain = x.mean(1, keepdim=True)
    assert torch.equal(corrupted(plain, "saturation", 5), plain)
    assert torch.allclose(corrupted(plain.expand(-1, 3, -1, -1), "saturation", 5), plain.expand(-1, 3, -1, -1))


def test_fog_only_brightens_and_differs_from_place_to_place():
    found = corrupted(grey(0.0, 4), "fog", 5)
    assert float(found.min()) == 0
    assert float(found.max()) == pytest.approx(1 - np.exp(-1.8))
    steps = (found[..., 1:] - found[..., :-1]).abs().mean()
    assert steps < 0.4 * found.std()  # smooth: noise of single pixels would have more than its deviation


def test_pixelate_makes_blocks():
    x = torch.rand(1, 1, 32, 32, generator=generator(0, "x"), dtype=torch.float64)
    found = corrupted(x, "pixelate", 3)  # half of 32
    means = torch.nn.functional.avg_pool2d(x, 2)
    assert torch.allclose(found, means.repeat_interleave(2, 2).repeat_interleave(2, 3))


@pytest.mark.parametrize("channels", [1, 3])
def test_jpeg_is_that_of_a_jpeg_library(photos, channels):
    """Up to its rounding to whole pixel values; the difference from the image itself is far larger."""
    for side in (32, 27):  # 27 is padded to 32
        image = (255 * photos[3, :channels, :side, :side]).round()
        for severity, quality in zip(SEVERITIES, _KINDS["jpeg"][1], strict=True):
            pixels = image.byte().permute(1, 2, 0).squeeze(2).numpy()
            file = BytesIO()
            Image.fromarray(pixels).save(file, "JPEG", quality=int(quality), subsampling=0)
            theirs = torch.from_numpy(np.array(Image.open(file))).reshape(side, side, channels).permute(2, 0, 1)
            ours = 255 * corrupted(image[None] / 255, "jpeg", severity)[0]
            assert float((ours - theirs).abs().mean()) < 0.8
            assert float((image - theirs).abs().mean()) > 3


def test_steps_of_jpeg_are_those_of_the_standard() -> None:
    """At quality 50 a JPEG file is written with them."""
    file = BytesIO()
    Image.new("RGB", (8, 8)).save(file, "JPEG", quality=50)
    brightness, color = Image.open(file).quantization.values()
    assert [step for row in _BRIGHTNESS_STEPS for step in row] == list(brightness)
    assert [step for row in _COLOR_STEPS for step in row] == list(color)
