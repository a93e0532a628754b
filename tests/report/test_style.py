"""Methods can be told apart, in every picture in the same way."""

from perdure.registry import methods
from perdure.report.style import LOOKS, line_style, line_styles


def test_every_method_has_a_look_of_its_own() -> None:
    own = set(methods._shipped)  # those of other packages have none
    assert own == set(LOOKS)
    for part in (0, 1):
        assert len({look[part] for look in LOOKS.values()}) == len(LOOKS)


def test_colors_can_be_seen_on_white() -> None:
    def luminance(color: str) -> float:
        red, green, blue = (int(color[place : place + 2], 16) for place in (1, 3, 5))
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    assert max(luminance(color) for color, _, _ in LOOKS.values()) < 185


def test_a_method_looks_the_same_whoever_stands_beside_it() -> None:
    alone, (_, beside) = line_styles(["rcl"])[0], line_styles(["gpm, seed 1", "rcl, seed 1"])
    assert alone == beside == line_styles(["rcl (mix_weight=0.2)"])[0]
    one, two, three = line_styles(["rcl, seed 1", "rcl, seed 2", "mine"])
    assert one["color"] == two["color"] != three["color"]
    assert one["linestyle"] != two["linestyle"]
    assert len({str(line_style(place)) for place in range(len(LOOKS))}) == len(LOOKS)
    every = line_styles([*LOOKS, "mine", "yours"])
    assert len(every) == len(LOOKS) + 2
