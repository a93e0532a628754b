"""Pictures inside a page: SVG that follows the page's colors, and PNG where that would be too large.

A page forbids style attributes and shares one space of ids, so what matplotlib writes is rewritten: styles become
presentation attributes, ids that something refers to get a prefix, all others go. What was drawn in the color of text
becomes `currentColor`, grey becomes a veil of it, white the page, and the colors of methods are variables of the page,
which has a second set for its dark side.
"""

import re
from typing import Any
from xml.etree import ElementTree

from perdure.report.figures import Draw, png, saved
from perdure.report.style import LOOKS

SVG = "{http://www.w3.org/2000/svg}"
LARGEST = 200_000  # bytes of an SVG; a PNG is smaller than what is more than that
TEXT = "#010203"  # stands for the color of text, which is nobody else's
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "perdure",  # the same record gives the same bytes
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), TEXT),
    **dict.fromkeys(("figure.facecolor", "axes.facecolor", "savefig.facecolor"), "none"),
}
COLORS = {color: f"var(--{name})" for name, (color, _, _) in LOOKS.items() if color not in ("#000000", "#7f7f7f")}
GREY = re.compile(r"#([0-9a-f]{2})\1\1")
WIDE = 620  # pixels; a wider picture is not squeezed into a phone's width, its box scrolls
PIXELS = 96 / 72  # of a point
DROPPED = {"font-family", "font-stretch", "font-variant", "stroke-miterlimit"}


def inline_svg(draw: Draw, prefix: str, title: str) -> bytes:
    """What is drawn on an empty figure, as an SVG to be put into a page, or a PNG where the SVG would be too large.

    `prefix` sets its ids apart from those of other pictures of the page; `title` is what is read aloud.
    """
    drawn = saved(draw, STYLE, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    root = ElementTree.fromstring(drawn)
    referred = set(re.findall(rb"#([\w-]+)", b" ".join(re.findall(rb'(?:href="|url\()[^")]+', drawn))))
    used = {name.decode() for name in referred}
    markers = {id(path) for definitions in root.iter(f"{SVG}defs") for path in definitions.iter(f"{SVG}path")}
    for element in root.iter():
        _rewrite(element, used, prefix, id(element) in markers)
    _frame(root, title)
    found = ElementTree.tostring(root, encoding="unicode").replace(" />", "/>").encode()
    return found if len(found) <= LARGEST else png(draw)


def _frame(root: ElementTree.Element, title: str) -> None:
    for child in list(root):
        if child.tag == "metadata":
            root.remove(child)
    for definitions in root.iter("defs"):
        for child in [child for child in definitions if child.tag == "style"]:
            definitions.remove(child)
    _prune(root)
    width, height = (float(side) for side in root.get("viewBox", "").split()[2:])
    root.attrib.clear()
    shape = {
        "viewBox": f"0 0 {width:g} {height:g}",
        "width": f"{width * PIXELS:.0f}",
        "height": f"{height * PIXELS:.0f}",
    }
    # As matplotlib says of everything in a style of its own, which would hold for all of the page.
    lines = {"stroke-linejoin": "round", "stroke-linecap": "butt"}
    root.attrib |= {"role": "img", "aria-label": title, **shape, **lines}
    root.attrib |= {"class": "wide"} if width * PIXELS > WIDE else {}


def _prune(element: ElementTree.Element) -> None:
    """Take out what is not seen: empty groups, those that say nothing, and grounds without a color."""
    children: list[ElementTree.Element] = []
    for child in element:
        _prune(child)
        invisible = child.tag == "path" and child.get("fill") == "none" and "stroke" not in child.attrib
        if invisible or (child.tag in ("g", "defs") and not len(child)):
            continue
        children += list(child) if child.tag == "g" and not child.attrib else [child]
    for child in list(element):
        element.remove(child)
    element.extend(children)
    element.text = element.text if element.tag in ("text", "tspan") else None
    for child in children:
        child.tail = None


def _rewrite(element: ElementTree.Element, used: set[str], prefix: str, is_marker: bool) -> None:
    element.tag = element.tag.rpartition("}")[2]
    found = {name.rpartition("}")[2]: value for name, value in element.attrib.items()}
    styles = [part.partition(":") for part in found.pop("style", "").split(";") if part.strip()]
    found |= {name.strip(): value.strip() for name, _, value in styles if name.strip() not in DROPPED}
    if font := found.pop("font", ""):  # the short form, which is no attribute
        found["font-size"] = re.search(r"[\d.]+px", font)[0]  # type: ignore[index]
        found |= {"font-weight": "bold"} if re.match(r"(bold|[67]00)\b", font) else {}
    if found.get("id") not in used:
        found.pop("id", None)
    for name, value in found.items():
        if name == "id":
            found[name] = prefix + value
        elif name == "href" and value.startswith("#"):
            found[name] = f"#{prefix}{value[1:]}"
        elif value.startswith("url(#"):
            found[name] = f"url(#{prefix}{value[5:]}"
        elif name == "d":
            found[name] = _short_path(value)
        elif name in ("transform", "x", "y", "width", "height"):
            found[name] = _short_numbers(value)
    if found.get("transform", "").startswith("rotate(-0 "):
        del found["transform"]
    on_text = element.tag in ("text", "tspan")
    for name in ("fill", "stroke"):
        if name in found:
            found |= _colored(name, found, on_text)
    if on_text:
        found.setdefault("fill", "#000000")  # what is black is not said, and other text has a color here
    elif element.tag in ("path", "use") and not is_marker:  # a marker has the color of where it is used
        found.setdefault("fill", "currentColor")
    element.attrib.clear()
    element.attrib |= found


def _short_numbers(value: str) -> str:
    """Hundredths of a point are enough.

    >>> _short_numbers("translate(12.3456 7.0)")
    'translate(12.35 7)'
    """
    return re.sub(r"-?\d+\.\d+", lambda number: f"{float(number[0]):.2f}".rstrip("0").rstrip("."), value)


def _short_path(value: str) -> str:
    """
    >>> _short_path("M 12.3456 -0.1 \\nL 7.0 8")
    'M12.35-0.1L7 8'
    """
    return re.sub(r" ?([A-Za-z-]) ?(?=[\d-])", r"\1", " ".join(_short_numbers(value).split()))


def _colored(name: str, found: dict[str, str], on_text: bool) -> dict[str, str]:
    """The color of a shape or of text, as attributes that follow the page. Text in black and white stays as it is: it
    stands on a ground of its own."""
    color = found[name].lower()
    if color == TEXT:
        return {name: "currentColor"}
    if color in COLORS:
        return {name: COLORS[color]}
    grey = GREY.fullmatch(color)
    if grey is None or (on_text and color in ("#000000", "#ffffff")):
        return {}
    if color == "#ffffff":
        return {name: "var(--page)"}
    if on_text:
        return {name: "var(--faint)"}
    veil = round(1 - int(grey[1], 16) / 255, 2)
    opacity = f"{name}-opacity"
    return {name: "currentColor"} | ({opacity: f"{veil * float(found.get(opacity, 1)):.2g}"} if veil < 1 else {})
