"""The signature is the schema: what values a method, a network or a plan takes, read from its `__init__`.

Names, types and defaults come from the keyword-only arguments, meanings and symbols from the comments behind them.
"""

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BeforeValidator, ConfigDict, Field, ValidationError, create_model

from perdure.errors import UnknownName, WrongValue

Share = Annotated[float, Field(ge=0, le=1)]
Weight = Annotated[float, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=1)]
Bytes = Annotated[
    int,
    Field(ge=1, description="a number of bytes (500000, 512KB, 64MB, 1GB)"),
    BeforeValidator(lambda given: _bytes(given) if isinstance(given, str) else given),
]
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


def values_of(thing: Callable[..., Any]) -> dict[str, Value]:
    """The values a thing takes, in order.

    >>> from perdure.methods.rcl import RCL
    >>> values_of(RCL)["mix_weight"].symbol, values_of(RCL)["mix_weight"].default
    ('λ', 0.1)
    """
    comments = dict(re.findall(r"^\s+(\w+):.*?#\s*(.*)$", inspect.getsource(thing), re.MULTILINE))
    found = {}
    for parameter in inspect.signature(thing).parameters.values():
        if parameter.kind is not parameter.KEYWORD_ONLY:
            continue
        symbol, about = _symbol(comments.get(parameter.name, ""))
        found[parameter.name] = Value(parameter.name, parameter.annotation, parameter.default, symbol, about)
    return found


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
    fields: dict[str, Any] = {name: (known[name].type, ...) for name in given}
    form = create_model("Values", __config__=ConfigDict(extra="forbid", allow_inf_nan=False), **fields)
    try:
        return dict(form(**{name: _several(_plain(value), known[name].type) for name, value in given.items()}))
    except ValidationError as error:
        wrong = error.errors()[0]
        name = str(wrong["loc"][0])
        raise WrongValue(f"{kind}: {name}={given[name]} is not allowed; {name} takes {known[name].allowed}") from None


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
    if origin is Annotated and parts[1].description:
        return str(parts[1].description)
    if origin is Annotated:
        signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
        bounds = [
            f"{sign} {getattr(bound, name):g}"
            for bound in parts[1].metadata
            for name, sign in signs.items()
            if hasattr(bound, name)
        ]
        return f"{_allowed(parts[0])} {' and '.join(bounds)}"
    if origin is tuple:
        return "numbers with commas between"
    return {float: "a number", int: "a whole number", bool: "true or false", str: "a word", NoneType: "none"}[kind]


def _plain(value: Any) -> Any:
    """Text from the command line: "none" means none, "1,2" a list."""
    if not isinstance(value, str):
        return value
    if value.lower() == "none":
        return None
    return [_number(part.strip()) for part in value.split(",")] if "," in value else _number(value)


def _number(text: str) -> str | float:
    """A fraction as a number, since strengths of attacks are given in 255ths; any other text as it is."""
    found = re.fullmatch(r"([0-9.]+)/([0-9]*[1-9][0-9]*)", text)
    return float(found[1]) / int(found[2]) if found else text


def _several(value: Any, kind: Any) -> Any:
    """A single one where several may be given."""
    alone = value is not None and not isinstance(value, list | tuple)
    return [value] if alone and any(get_origin(part) is tuple for part in (kind, *get_args(kind))) else value


def _bytes(text: str) -> str | int:
    """A size in words as a number of bytes; any other text as it is.

    >>> [_bytes(text) for text in ("64MB", "1.5 kB", "1GiB", "500000", "much")]
    [64000000, 1500, 1073741824, 500000, 'much']
    """
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?([kmgt]?)(i?)b?", text.strip().lower())
    if found is None or (found[3] and not found[2]):
        return text
    return int(float(found[1]) * (1024 if found[3] else 1000) ** " kmgt".index(found[2] or " "))
