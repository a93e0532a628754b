"""Corruptions of images: twelve things that happen to pictures, each in five severities.

They follow the idea of Hendrycks and Dietterich (ICLR 2019), and for images of 32 × 32 about the sizes of their
CIFAR-C, but they are our own: figures made with them must not be compared with published ones, such as mCE.

Images are (n, channels, height, width), floats in [0, 1], with one channel or three. Widths of blurs are given for 32
pixels and grow with larger images. All draws are made on the CPU, so that they are the same on every device.
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from perdure.errors import UnknownName, WrongValue

SEVERITIES = (1, 2, 3, 4, 5)
SIDE = 32  # of the images that the widths of blurs are given for
GREY = (0.299, 0.587, 0.114)  # brightness of red, green and blue, as JPEG has it

Corrupt = Callable[[Tensor, float, torch.Generator], Tensor]


def corrupt(x: Tensor, kind: str, severity: int, rng: torch.Generator) -> Tensor:
    """Images (n, channels, height, width) corrupted, still in [0, 1]; severity 1 to 5.

    >>> x = torch.full((1, 3, 8, 8), 0.5)
    >>> round(float(corrupt(x, "brightness", 3, torch.Generator()).mean()), 3)
    0.65
    """
    if kind not in _KINDS:
        raise UnknownName("corruption", kind, KINDS)
    if severity not in SEVERITIES:
        raise WrongValue(f"severity={severity} is not allowed; use 1 to 5")
    if x.ndim != 4 or x.shape[1] not in (1, 3) or not x.dtype.is_floating_point:
        raise WrongValue(
            f"images must be floats (n, 1 or 3, height, width) to be corrupted, not {x.dtype} {tuple(x.shape)}"
        )
    change, strengths = _KINDS[kind]
    return change(x, strengths[severity - 1], rng).clamp(0, 1)


# --- noise ---


def _gaussian_noise(x: Tensor, deviation: float, rng: torch.Generator) -> Tensor:
    return x + deviation * torch.randn(x.shape, generator=rng).to(x)


def _shot_noise(x: Tensor, photons: float, rng: torch.Generator) -> Tensor:
    """So many photons make a white pixel, and they come one by one."""
    return torch.poisson(photons * x.detach().cpu(), generator=rng).to(x) / photons


def _impulse_noise(x: Tensor, share: float, rng: torch.Generator) -> Tensor:
    """A share of all values becomes black or white."""
    draw = torch.rand(x.shape, generator=rng).to(x.device)
    return x.masked_fill(draw < share / 2, 0.0).masked_fill(draw >= 1 - share / 2, 1.0)


# --- blur ---


def _gaussian_blur(x: Tensor, deviation: float, _: torch.Generator) -> Tensor:
    width = deviation * _enlarged(x)
    reach = math.ceil(4 * width)
    line = torch.arange(-reach, reach + 1, device=x.device, dtype=x.dtype).div(width).square().div(-2).exp()
    return _filter(_filter(x, line[None, :, None]), line[None, None, :])


def _defocus_blur(x: Tensor, radius: float, _: torch.Generator) -> Tensor:
    """Every point becomes a disk; a pixel of its edge weighs as much as lies inside, counted at 9 × 9 points."""
    radius, points = radius * _enlarged(x), 9
    reach = math.ceil(radius - 0.5)
    line = (torch.arange((2 * reach + 1) * points, device=x.device, dtype=x.dtype) + 0.5) / points - reach - 0.5
    inside = (line[:, None].square() + line.square() <= radius**2).to(x)
    return _filter(x, F.avg_pool2d(inside[None], points))


def _motion_blur(x: Tensor, length: float, rng: torch.Generator) -> Tensor:
    """Every point becomes a line, in another direction for each image."""
    length = length * _enlarged(x)
    reach = math.ceil(length / 2)
    angle = math.pi * torch.rand(len(x), 1, generator=rng).to(x)
    along = torch.linspace(-length / 2, length / 2, 8 * reach + 1, device=x.device, dtype=x.dtype)
    pixels = torch.arange(-reach, reach + 1, device=x.device, dtype=x.dtype)
    # A point of the line is shared out among the four pixels around it.
    rows, columns = (
        (1 - (at[..., None] - pixels).abs()).clamp_min(0) for at in (angle.sin() * along, angle.cos() * along)
    )
    return _filter(x, torch.einsum("npi,npj->nij", rows, columns))


def _enlarged(x: Tensor) -> float:
    """At least 1: blurs of less than a pixel are none."""
    return max(1.0, min(x.shape[2:]) / SIDE)


def _filter(x: Tensor, kernels: Tensor) -> Tensor:
    """Each image filtered with its own kernel (n, odd, odd), or all with one (1, odd, odd), of sum one; the border
    repeats outwards."""
    n, channels, height, width = x.shape
    down, across = kernels.shape[1] // 2, kernels.shape[2] // 2
    kernels = kernels / kernels.sum((1, 2), keepdim=True)
    each = kernels.expand(n, -1, -1).repeat_interleave(channels, 0)[:, None]
    padded = F.pad(x, (across, across, down, down), mode="replicate")
    filtered = F.conv2d(padded.reshape(1, n * channels, *padded.shape[2:]), each, groups=n * channels)
    return filtered.reshape(n, channels, height, width)


# --- light and color ---


def _contrast(x: Tensor, left: float, _: torch.Generator) -> Tensor:
    """Towards the mean of each image and channel."""
    return x.mean((2, 3), keepdim=True).lerp(x, left)


def _saturation(x: Tensor, times: float, _: torch.Generator) -> Tensor:
    """Colors further away from their grey; what is grey stays as it is."""
    if x.shape[1] == 1:
        return x
    grey = (x * x.new_tensor(GREY).view(1, 3, 1, 1)).sum(1, keepdim=True)
    return grey.lerp(x, times)


def _fog(x: Tensor, density: float, rng: torch.Generator) -> Tensor:
    """White light, scattered on the way: what is left of the image falls exponentially with the fog before it."""
    left = (-density * 2 * _clouds(x, rng)).exp()
    return x * left + (1 - left)


def _clouds(x: Tensor, rng: torch.Generator) -> Tensor:
    """Smooth fields (n, 1, height, width) in [0, 1]: noise whose waves weigh the less the shorter they are."""
    n, _, height, width = x.shape
    waves = torch.fft.rfft2(torch.randn(n, height, width, generator=rng))
    frequency = (torch.fft.fftfreq(height)[:, None].square() + torch.fft.rfftfreq(width).square()).sqrt()
    weight = frequency.where(frequency > 0, torch.inf).pow(-1.8)
    field = torch.fft.irfft2(waves * weight, s=(height, width))
    low, high = field.amin((1, 2), keepdim=True), field.amax((1, 2), keepdim=True)
    clouds: Tensor = (field - low) / (high - low).clamp_min(1e-12)
    return clouds[:, None].to(x)


# --- storage ---


def _pixelate(x: Tensor, left: float, _: torch.Generator) -> Tensor:
    """Fewer and larger pixels, each the mean of those that it covers."""
    down, across = (_coarse(size, max(1, round(left * size))).to(x) for size in x.shape[2:])
    return down @ x @ across


def _coarse(size: int, blocks: int) -> Tensor:
    """The matrix (size, size) that replaces each of `size` values by the mean of its block."""
    block = torch.arange(size) * blocks // size
    same = (block[:, None] == block).float()
    return same / same.sum(1, keepdim=True)


# Annex K of the JPEG standard (ITU-T T.81): steps of the 8 × 8 cosine coefficients, of brightness and of color.
_BRIGHTNESS_STEPS = (
    (16, 11, 10, 16, 24, 40, 51, 61),
    (12, 12, 14, 19, 26, 58, 60, 55),
    (14, 13, 16, 24, 40, 57, 69, 56),
    (14, 17, 22, 29, 51, 87, 80, 62),
    (18, 22, 37, 56, 68, 109, 103, 77),
    (24, 35, 55, 64, 81, 104, 113, 92),
    (49, 64, 78, 87, 103, 121, 120, 101),
    (72, 92, 95, 98, 112, 100, 103, 99),
)
_COLOR_STEPS = (
    (17, 18, 24, 47, 99, 99, 99, 99),
    (18, 21, 26, 66, 99, 99, 99, 99),
    (24, 26, 56, 99, 99, 99, 99, 99),
    (47, 66, 99, 99, 99, 99, 99, 99),
    *((99,) * 8,) * 4,
)


def _jpeg(x: Tensor, quality: float, _: torch.Generator) -> Tensor:
    """What JPEG loses, with color at full resolution (4:4:4); the quality scales the standard's tables as usual."""
    height, width = x.shape[2:]
    channels = x.shape[1]
    to_planes, middle = _planes(x)
    padded = F.pad(x, (0, -width % 8, 0, -height % 8), mode="replicate")
    planes = torch.einsum("pc,nchw->nphw", to_planes, 255 * padded).round() - middle
    scale = 5000 / quality if quality < 50 else 200 - 2 * quality
    tables = x.new_tensor((_BRIGHTNESS_STEPS, _COLOR_STEPS, _COLOR_STEPS)[:channels])
    steps = ((tables * scale + 50) / 100).floor().clamp(1, 255)[:, None, None]
    place = torch.arange(8, device=x.device, dtype=x.dtype)
    waves = 0.5 * (math.pi / 8 * place[:, None] * (place + 0.5)).cos()  # the cosine transform (DCT-II) as rows,
    waves = torch.cat([waves[:1] / math.sqrt(2), waves[1:]])  # orthonormal
    blocks = planes.unfold(2, 8, 8).unfold(3, 8, 8)  # (n, planes, rows, columns, 8, 8)
    kept = (waves @ blocks @ waves.T / steps).round() * steps
    planes = (waves.T @ kept @ waves).transpose(3, 4).reshape(planes.shape)
    back = torch.einsum("cp,nphw->nchw", torch.linalg.inv(to_planes), planes + middle) / 255
    return back[:, :, :height, :width]


def _planes(x: Tensor) -> tuple[Tensor, Tensor]:
    """How red, green and blue (0 to 255) become brightness and two differences of color; what to take off brightness,
    whose middle is 128, while that of the differences is 0 here. Of grey images there is brightness only."""
    if x.shape[1] == 1:
        return x.new_ones(1, 1), x.new_full((1, 1, 1), 128.0)
    red, green, blue = GREY
    blueness = (-red / (1 - blue) / 2, -green / (1 - blue) / 2, 0.5)
    redness = (0.5, -green / (1 - red) / 2, -blue / (1 - red) / 2)
    return x.new_tensor((GREY, blueness, redness)), x.new_tensor((128.0, 0.0, 0.0)).view(3, 1, 1)


_KINDS: dict[str, tuple[Corrupt, tuple[float, ...]]] = {
    "gaussian-noise": (_gaussian_noise, (0.04, 0.06, 0.08, 0.09, 0.10)),  # standard deviation
    "shot-noise": (_shot_noise, (500, 250, 100, 75, 50)),  # photons of a white pixel
    "impulse-noise": (_impulse_noise, (0.01, 0.02, 0.03, 0.05, 0.07)),  # share of values
    "gaussian-blur": (_gaussian_blur, (0.4, 0.6, 0.7, 0.8, 1.0)),  # standard deviation, of 32 pixels
    "defocus-blur": (_defocus_blur, (0.7, 0.9, 1.2, 1.6, 2.1)),  # radius, of 32 pixels
    "motion-blur": (_motion_blur, (2.0, 3.0, 4.0, 5.0, 6.5)),  # length, of 32 pixels
    "brightness": (lambda x, more, _: x + more, (0.05, 0.1, 0.15, 0.2, 0.3)),  # added
    "contrast": (_contrast, (0.75, 0.5, 0.4, 0.3, 0.15)),  # share of the deviation from the mean that is left
    "saturation": (_saturation, (1.5, 2.0, 3.0, 4.0, 6.0)),  # factor of the deviation from grey
    "fog": (_fog, (0.15, 0.3, 0.45, 0.65, 0.9)),  # density
    "pixelate": (_pixelate, (0.75, 0.6, 0.5, 0.4, 0.3)),  # share of height and width that is left
    "jpeg": (_jpeg, (80, 60, 40, 25, 15)),  # quality
}

KINDS: tuple[str, ...] = tuple(_KINDS)
"""Noise, blur, light and color, storage."""
