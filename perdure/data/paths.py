"""Where files are looked for, where copies of them are kept, and how they are named in messages."""

import os
import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from platformdirs import user_cache_path

from perdure.errors import BadData, MissingFile, expanded


def data_root(root: str | Path | None = None) -> Path:
    """The folder that holds image files: the one given, else $PERDURE_DATA, else the user's cache."""
    return expanded(root) if root is not None else _folder("PERDURE_DATA")


def cache_root() -> Path:
    """The folder for what can be made anew: $PERDURE_CACHE, else the user's cache."""
    return _folder("PERDURE_CACHE")


def _folder(variable: str) -> Path:
    named = os.environ.get(variable)
    return expanded(named) if named else user_cache_path("perdure")


@contextmanager
def reading(path: Path, kind: str = "file") -> Iterator[None]:
    """Turns an error of the file system into one line about `path`."""
    try:
        yield
    except FileNotFoundError:
        how = "put it there, or point PERDURE_DATA at its folder"
        raise MissingFile(f"{one_line(path)}: no such {kind}; {how}") from None
    except OSError as error:
        how = f"check that it is a {kind} you may read"
        raise BadData(f"{one_line(path)}: cannot be read ({error.strerror}); {how}") from None


def first_few(names: Sequence[object], most: int = 5) -> str:
    """The first few of many, on one line whatever they hold.

    >>> first_few(["a", "b", "c"]), first_few("abcdefgh")
    ('a, b, c', 'a, b, c, d, e and 3 more')
    """
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(map(one_line, names[:most])) + more


def one_line(name: object) -> str:
    """A name, with line breaks, control characters and what UTF-8 cannot hold written as escapes.

    >>> one_line("two\\nlines, 猫"), one_line("bad \\udcff")
    ('two\\\\nlines, 猫', 'bad \\\\udcff')
    """
    breaking = ("Cc", "Cs", "Zl", "Zp")  # Unicode's categories: controls, lone surrogates, line and paragraph ends
    text = str(name)
    return "".join(c.encode("unicode_escape").decode() if unicodedata.category(c) in breaking else c for c in text)
