"""What there is, by name; and benchmarks as streams."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from perdure import registry
from perdure.errors import UnknownName

if TYPE_CHECKING:
    from perdure.types import Stream


def catalog(kind: str | None = None) -> dict[str, Any]:
    """Everything that can be named, with a line about each: methods, networks, benchmarks, probes,
    augmentations, studies.

    >>> sorted(catalog())
    ['augmentations', 'benchmarks', 'methods', 'networks', 'probes', 'studies']
    >>> catalog("networks")["mlp"]
    'linear layers and ReLU'
    """
    from perdure.lab.study_file import shipped

    found = {f"{one.kind}s": {name: entry.about for name, entry in one.entries().items()} for one in registry.KINDS}
    found["studies"] = shipped()
    if kind is None:
        return found
    if kind not in found:
        raise UnknownName("kind", kind, found)
    return found[kind]


def benchmarks() -> dict[str, str]:
    """The benchmarks there are, with a line about each; `perdure.benchmark(name)` opens one."""
    return dict(catalog("benchmarks"))


def datasets() -> dict[str, str]:
    """The published image sets that benchmarks are made of, with their terms; `perdure.data.check(name)` examines."""
    from perdure.data.catalog import SETS

    return {name: published.terms for name, published in SETS.items()}


def benchmark(
    name: str, *, seed: int = 1, tasks: int | None = None, root: str | Path | None = None, **settings: Any
) -> "Stream":
    """The tasks of a benchmark, as `perdure.run` learns them.

    `name` is one of `perdure.benchmarks()`, folder:PATH for your own images, or my.py:NAME for a function of yours.
    `root` is the place of image files; `settings` are those that `perdure show NAME` lists.

    >>> [task.name for task in benchmark("synthetic", tasks=2)]
    ['synthetic-0', 'synthetic-1']
    """
    from perdure.lab.build import open_clean
    from perdure.lab.spec import spec

    return open_clean(
        spec("finetune", name, seed=seed, tasks=tasks, settings=settings), None if root is None else Path(root)
    )
