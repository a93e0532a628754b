"""Colors, one choice for all tables and pictures: better is darker, and a method looks the same everywhere."""

import re
from collections.abc import Sequence
from typing import Any

RGB = tuple[int, int, int]
SHADES: tuple[RGB, ...] = ((247, 251, 255), (198, 219, 239), (107, 174, 214), (33, 113, 181), (8, 48, 107))
"""From 0 to 100 percent. One hue that grows darker, so that it reads the same to the color-blind and in grey."""

DASHES: tuple[Any, ...] = ("-", "--", ":", "-.", (0, (6, 2, 1, 2, 1, 2)))
LOOKS: dict[str, tuple[str, str, int]] = {  # color, marker, dash; markers are there once, for those who see no color
    "mtl": ("#000000", "*", 1),
    "finetune": ("#7f7f7f", "X", 2),
    "ewc": ("#e69f00", "v", 3),
    "er": ("#56b4e9", "P", 0),
    "agem": ("#117733", "D", 4),
    "owm": ("#882255", "p", 2),
    "gpm": ("#0072b2", "s", 1),
    "sgp": ("#8c564b", "d", 0),
    "pat": ("#d62728", "H", 0),
    "trgp": ("#cc79a7", "^", 3),
    "fsdgpm": ("#999933", "<", 4),
    "api": ("#44aa99", "h", 1),
    "dfgp": ("#332288", ">", 3),
    "rcl": ("#d55e00", "o", 0),
}
FILLS: tuple[dict[str, str], ...] = (
    {},
    {"markerfacecolor": "white"},
    {"fillstyle": "bottom", "markerfacecoloralt": "white"},
)
OTHERS = ("gpm", "rcl", "api", "mtl", "owm", "ewc", "er", "agem", "trgp", "dfgp", "fsdgpm", "finetune", "sgp", "pat")
"""Whose looks lines take that are no method's, in that order: neighbors differ most."""


def shade(percent: float) -> RGB:
    """The ground of a cell.

    >>> shade(0), shade(100), shade(50)
    ((247, 251, 255), (8, 48, 107), (107, 174, 214))
    """
    place = max(0.0, min(percent, 100.0)) / 100 * (len(SHADES) - 1)
    below = min(int(place), len(SHADES) - 2)
    low, high = SHADES[below], SHADES[below + 1]
    red, green, blue = (round(a + (place - below) * (b - a)) for a, b in zip(low, high, strict=True))
    return red, green, blue


def ink(ground: RGB) -> str:
    """What can be read on a ground: black or white, whichever contrasts more.

    >>> ink(shade(20)), ink(shade(90))
    ('black', 'white')
    """
    return "white" if contrast_of(ground, (255, 255, 255)) > contrast_of(ground, (0, 0, 0)) else "black"


def line_style(place: int) -> dict[str, Any]:
    """Of the line of that place among several that are no methods."""
    color, marker, _ = LOOKS[OTHERS[place % len(OTHERS)]]
    return {"color": color, "marker": marker, "linestyle": DASHES[place % len(DASHES)]}


def line_styles(labels: Sequence[str]) -> list[dict[str, Any]]:
    """Of lines with these labels. What begins with the name of a method, as "gpm, seed 1", "gpm (rank=2)" or
    "gpm + attack", has its color and marker; where a method has several lines, they differ in dash, the marker of the
    second is hollow and those of others half so. The method as it is comes first.

    >>> more, one, other = line_styles(["gpm + attack", "gpm", "mine"])
    >>> one["color"] == more["color"] != other["color"], one["linestyle"] == more["linestyle"]
    (True, False)
    >>> "markerfacecolor" in one, more["markerfacecolor"]
    (False, 'white')
    """
    methods = [re.split(r",| \(| \+ ", label)[0] for label in labels]
    taken = {name for name in methods if name in LOOKS}
    free = [place for place, name in enumerate(OTHERS) if name not in taken] or list(range(len(OTHERS)))
    unknown = list(dict.fromkeys(name for name in methods if name not in LOOKS))
    found = []
    for place, name in enumerate(methods):
        if name in LOOKS:
            color, marker, dash = LOOKS[name]
            alike = [other for other, method in enumerate(methods) if method == name]
            turn = sorted(alike, key=lambda other: labels[other] != methods[other]).index(place)
            own = {"color": color, "marker": marker, "linestyle": DASHES[(dash + turn) % len(DASHES)]}
            found.append(own | FILLS[min(turn, len(FILLS) - 1)])
        else:
            found.append(line_style(free[unknown.index(name) % len(free)]))
    return found


def on_dark(color: str, page: RGB, contrast: float = 4.5) -> str:
    """A color that was chosen for white paper, made lighter until it can be read on a dark page.

    >>> on_dark("#332288", (22, 24, 28)), on_dark("#e69f00", (22, 24, 28))
    ('#857ab8', '#e69f00')
    """
    own = _rgb(color)
    for step in range(21):
        red, green, blue = (round(part + step / 20 * (255 - part)) for part in own)
        if contrast_of((red, green, blue), page) >= contrast:
            break
    return f"#{red:02x}{green:02x}{blue:02x}"


def contrast_of(one: RGB, other: RGB) -> float:
    """The contrast of two colors as WCAG defines it: 1 of equal ones, 21 of black on white.

    >>> round(contrast_of((0, 0, 0), (255, 255, 255)))
    21
    """
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


def _luminance(color: RGB) -> float:
    parts = [part / 255 for part in color]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _rgb(color: str) -> RGB:
    return int(color[1:3], 16), int(color[3:5], 16), int(color[5:7], 16)
