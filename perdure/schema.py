"""The signature is the schema: what values a method, a network or a plan takes, read from its `__init__`.

Names, types and defaults come from the keyword-only arguments, meanings and symbols from the comments behind them. The
command line, presets, Python and `help()` all use what is read here.
"""

import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, wraps
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, Unpack, get_args, get_origin, get_type_hints

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError, create_model

from perdure.errors import UnknownName, WrongValue, short


@dataclass(frozen=True, repr=False)
class Limits:
    """Bounds of a number, which pydantic takes one by one and `help()` prints as a reader would write them."""

    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    lt: float | None = None
    about: str = ""  # in words, where the bounds do not say it

    __is_annotated_types_grouped_metadata__ = True

    def __iter__(self) -> Iterator[Any]:
        bounds = ((Ge, self.ge), (Gt, self.gt), (Le, self.le), (Lt, self.lt))
        return (kind(bound) for kind, bound in bounds if bound is not None)

    def __repr__(self) -> str:
        bounds = (("≥", self.ge), (">", self.gt), ("≤", self.le), ("<", self.lt))
        return self.about or " and ".join(f"{sign} {bound:g}" for sign, bound in bounds if bound is not None)


@dataclass(frozen=True, repr=False)
class SizeInWords(BeforeValidator):
    """Takes 64MB for 64000000."""

    def __init__(self) -> None:
        super().__init__(lambda given: _bytes(given) if isinstance(given, str) else given)

    def __repr__(self) -> str:
        return "as 64MB"


Share = Annotated[float, Limits(ge=0, le=1)]
Weight = Annotated[float, Limits(ge=0)]
Positive = Annotated[float, Limits(gt=0)]
Count = Annotated[int, Limits(ge=1)]
Strength = Annotated[float, Limits(gt=0, le=1, about="a number > 0 and ≤ 1, in pixels of 0 … 1, such as 4/255")]
Bytes = Annotated[int, Limits(ge=1, about="a number of bytes (500000, 512KB, 64MB, 1GB)"), SizeInWords()]
Variant = Literal["released", "paper"]  # where the paper's equations and the released code differ
Reading = Literal["intended", "released"]  # where the released code has a slip

GREEK = dict(zip(["alpha", "epsilon", "eta", "kappa", "lambda", "rho", "phi"], "αεηκλρφ", strict=True))


@dataclass(frozen=True)
class Value:
    name: str
    type: Any
    default: Any
    symbol: str  # the paper's letter, or ""
    about: str

    @property
    def allowed(self) -> str:
        return _allowed(self.type)


@cache
def values_of(thing: Callable[..., Any]) -> dict[str, Value]:
    """The values a thing takes, in order. Those that it takes as `**shared: Unpack[…]`, to hand them on, are explained
    where a class that it builds on lists them.

    >>> from perdure.methods.rcl import RCL
    >>> values_of(RCL)["mix_weight"].symbol, values_of(RCL)["mix_weight"].default
    ('λ', 0.1)
    """
    comments = dict(re.findall(r"^\s+(\w+)[:=].*?#\s*(.*)$", _source(next(iter(_makers(thing)), thing)), re.MULTILINE))
    found: dict[str, Value] = {}
    for parameter in _signature(thing).parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            found |= _handed_on(thing, parameter.annotation)
        if parameter.kind is not parameter.KEYWORD_ONLY:
            continue
        kind = Any if parameter.annotation is parameter.empty else parameter.annotation
        symbol, about = _symbol(comments.get(parameter.name, ""))
        found[parameter.name] = Value(parameter.name, kind, parameter.default, symbol, about)
    return found


def _handed_on(thing: Any, annotation: Any) -> dict[str, Value]:
    if get_origin(annotation) is not Unpack:
        return {}
    _, base, *_ = _makers(thing)
    known = values_of(base)
    return {name: known[name] for name in get_type_hints(get_args(annotation)[0])}


def _makers(thing: Any) -> list[Any]:
    """Of a class, those among it and what it builds on that have an `__init__` of their own."""
    return [cls for cls in getattr(thing, "__mro__", ()) if "__init__" in vars(cls)]


def _source(thing: Callable[..., Any]) -> str:
    try:
        return inspect.getsource(thing)
    except (OSError, TypeError):  # typed into a prompt: it has no file, and values without a meaning
        return ""


def _signature(thing: Callable[..., Any]) -> inspect.Signature:
    try:
        return inspect.signature(thing, eval_str=True)
    except NameError:  # an annotation that only a type checker sees
        return inspect.signature(thing)


def meant(name: str, known: Mapping[str, Value]) -> str:
    """The name of the value that is meant, where the paper's symbol or its Greek name was given; else what was given.

    >>> from perdure.methods.rcl import RCL
    >>> [meant(name, values_of(RCL)) for name in ("mix_weight", "λ", "lambda", "radius")]
    ['mix_weight', 'mix_weight', 'mix_weight', 'radius']
    """
    letter = GREEK.get(name, name)
    found = [key for key, value in known.items() if value.symbol == letter]
    return found[0] if name not in known and len(found) == 1 else name


def _symbol(comment: str) -> tuple[str, str]:
    """Split "λ: weight of the mixed loss" into its letter and its meaning."""
    letter, colon, about = comment.partition(": ")
    return (letter, about) if colon and len(letter) == 1 else ("", comment)


def checked(kind: str, thing: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The given values with the right types, strings included; a clear error for a wrong name or value."""
    known = values_of(thing)
    for name in given:
        if name not in known:
            symbols = [greek for greek in GREEK if meant(greek, known) != greek]
            raise UnknownName(f"value of {kind}", name, [*known, *symbols])
    found = {}
    for name, value in given.items():
        of = known[name]
        try:
            found[name] = _form(of.type)(value=_several(_plain(value), of.type)).value  # type: ignore[attr-defined]
        except ValidationError:
            how = f"{name} takes {of.allowed}"
            raise WrongValue(f"{kind}: {name}={short(value)} is not allowed; {how}") from None
        if _too_large(found[name]):
            raise WrongValue(f"{kind}: {name}={short(value)} is too large; {name} takes {of.allowed}")
    return found


def _form(kind: Any) -> type[BaseModel]:
    """A form of one value. Making one takes longer than all else that is done with it, so they are kept."""
    try:
        return _kept_form(kind)
    except TypeError:  # a type of the user's that has no hash
        return _kept_form.__wrapped__(kind)


@cache
def _kept_form(kind: Any) -> type[BaseModel]:
    config = ConfigDict(extra="forbid", allow_inf_nan=False, arbitrary_types_allowed=True)
    form: type[BaseModel] = create_model("Value", __config__=config, value=(kind, ...))
    return form


def checks_values(kind: str, init: Callable[..., None]) -> Callable[..., None]:
    """An `__init__` whose values are checked as those of the command line are, with the same messages."""
    parameters = inspect.signature(init).parameters.values()
    others = {p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD}  # such as `net`
    open_ended = any(p.kind is p.VAR_KEYWORD and get_origin(p.annotation) is not Unpack for p in parameters)

    @wraps(init)
    def checked_init(self: Any, *args: Any, **given: Any) -> None:
        cls = type(self)
        if cls.__init__ is checked_init:  # what a subclass hands on is its own affair
            known = values_of(cls)  # type: ignore[arg-type]
            own = {name: given[name] for name in given if name not in others and (name in known or not open_ended)}
            given |= checked(f"{kind} {cls.__name__}", cls, own)
        init(self, *args, **given)

    return checked_init


def documented(cls: type) -> str:
    """A class's docstring, or its module's, with its values below: symbol, default, meaning, what is allowed."""
    module = sys.modules.get(cls.__module__)
    about = inspect.cleandoc(cls.__dict__.get("__doc__") or (module and module.__doc__) or "")
    lines = [
        f"    {v.name}{f' ({v.symbol})' if v.symbol else ''} = {v.default!r}: {v.about or v.name} [{v.allowed}]"
        for v in values_of(cls).values()
    ]
    return "\n".join([about, "", "Values:", *lines] if lines else [about])


def _allowed(kind: Any) -> str:
    """A type in words.

    >>> _allowed(Share), _allowed(Literal["a", "b"]), _allowed(Weight | None)
    ('a number ≥ 0 and ≤ 1', 'a or b', 'a number ≥ 0 or none')
    >>> _allowed(Bytes)
    'a number of bytes (500000, 512KB, 64MB, 1GB)'
    """
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Literal:
        return " or ".join(map(str, parts))
    if origin in (Union, UnionType):
        return " or ".join(map(_allowed, parts))
    if origin is Annotated:
        limits = parts[1]
        return (
            str(limits.about or f"{_allowed(parts[0])} {limits}") if isinstance(limits, Limits) else _allowed(parts[0])
        )
    if origin is tuple:
        return "numbers with commas between"
    words = {float: "a number", int: "a whole number", bool: "true or false", str: "a word", NoneType: "none"}
    return words.get(kind, "any value" if kind is Any else getattr(kind, "__name__", str(kind)))


def _plain(value: Any) -> Any:
    """Text from the command line: "none" means none, "1,2" a list."""
    if not isinstance(value, str):
        return value
    if value.lower() == "none":
        return None
    return [_number(part.strip()) for part in value.split(",")] if "," in value else _number(value)


def _too_large(value: Any) -> bool:
    """Whether a number, also one of several, is beyond what tensors hold (64 bits, or float32)."""
    if isinstance(value, list | tuple):
        return any(map(_too_large, value))
    return (isinstance(value, int) and abs(value) >= 2**63) or (isinstance(value, float) and abs(value) > 3e38)


def _number(text: str) -> str | float:
    """A fraction as a number, since strengths of attacks are given in 255ths; any other text as it is.

    >>> [_number(text) for text in ("51/255", ".5/2", "1.2.3/4", "./255", "1/0", "8")]
    [0.2, 0.25, '1.2.3/4', './255', '1/0', '8']
    """
    found = re.fullmatch(r"([0-9]{1,20}\.?[0-9]{0,20}|\.[0-9]{1,20})/([0-9]{1,20})", text)
    return float(found[1]) / int(found[2]) if found and int(found[2]) else text


def _several(value: Any, kind: Any) -> Any:
    """A single one where several may be given."""
    alone = value is not None and not isinstance(value, list | tuple)
    return [value] if alone and any(get_origin(part) is tuple for part in (kind, *get_args(kind))) else value


def _bytes(text: str) -> str | int:
    """A size in words as a number of bytes; any other text as it is.

    >>> [_bytes(text) for text in ("64MB", "1.5 kB", "1GiB", "500000", "much")]
    [64000000, 1500, 1073741824, 500000, 'much']
    """
    found = re.fullmatch(r"([0-9]{1,20}(?:\.[0-9]{1,20})?) ?([kmgt]?)(i?)b?", text.strip().lower())
    if found is None or (found[3] and not found[2]):
        return text
    return int(float(found[1]) * (1024 if found[3] else 1000) ** " kmgt".index(found[2] or " "))
