"""Names → things. The tables of contents of the package, and the doors for what is yours.

Nothing is imported before it is asked for, so that listing names does not import torch. Three doors:

- a file: wherever a name is asked for, `my.py:Careful` takes `Careful` from that file;
- `perdure.register(Careful)` in Python, or the class itself in place of a name;
- for packages, an entry point in the group `perdure.methods` (or networks, benchmarks, probes):

    [project.entry-points."perdure.methods"]
    mine = "my_package.mine:Mine"

A checksum of the file goes into the specification of a run, so that an edited method is another run. A record names
such a file, but cannot make anybody run it: files are run only if the user of this process named them (`allow`).
"""

import errno
import inspect
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from perdure.errors import UnknownName, WrongValue, expanded, short

OWN = re.compile(r"(.+\.py):(\w+)")


@dataclass(frozen=True)
class Entry:
    where: str  # "module:name"
    about: str

    def load(self) -> Any:
        module, _, name = self.where.partition(":")
        return getattr(import_module(module), name)


@dataclass(frozen=True)
class OwnEntry:
    """Something of the user's own, as it was when it was loaded."""

    thing: Any
    where: str  # "/path/to/file.py:name"; "" for what was typed into a prompt
    checksum: str  # of the file
    about: str

    def load(self) -> Any:
        return self.thing


@cache
def _of_other_packages(kind: str) -> dict[str, Entry]:
    """What installed packages offer; once for a process, since the metadata of all packages are read for it."""
    found = entry_points(group=f"perdure.{kind}s")
    return {e.name: Entry(e.value, f"from {e.dist.name if e.dist else e.value}") for e in found}


class Registry:
    def __init__(self, kind: str, entries: dict[str, Entry], base: str = "", functions: bool = False) -> None:
        self.kind = kind
        self.base = base  # "module:class" of what can be of this kind; empty for functions
        self.functions = functions  # whether a function may also stand for one, if it is named as such
        self._shipped = entries
        self._own: dict[str, OwnEntry] = {}

    def entries(self) -> "dict[str, Entry | OwnEntry]":
        """Those of perdure first, then those of other packages and yours; a name of perdure's cannot be taken."""
        return {**self._shipped, **_of_other_packages(self.kind), **self._own, **self._shipped}

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries())

    def __contains__(self, name: object) -> bool:
        return name in self.entries()

    def ships(self, name: str) -> bool:
        """Whether it is perdure's own."""
        return name in self._shipped

    def find(self, name: str) -> "Entry | OwnEntry":
        known = self.entries()
        if name not in known:
            raise UnknownName(self.kind, name, known, hint=f"yours is named as my.py:{self.kind.capitalize()}")
        return known[name]

    def load(self, name: str) -> Any:
        return self.find(name).load()

    # ── the user's own ──────────────────────────────────────────────────────────────────────────────────────

    def name(self, thing: Any) -> str:
        """The name of what a user asks for: a known name, a file as in `my.py:Careful`, or the thing itself.

        Files and things become known by it; the name of `src/my.py:Careful` is `my.py:Careful`.
        """
        if not isinstance(thing, str):
            return self._name_of(thing)
        known = self._own.get(thing)  # by a name that was found before, wherever its file is
        found = OWN.fullmatch(known.where if known is not None and known.where else thing)
        if found is None or (known is not None and ":" not in thing):
            return thing
        path, attribute = expanded(found[1]), found[2]
        name = self.short_name(found[0])
        self.register(_from_file(path, attribute), name, f"{path.resolve()}:{attribute}")
        return name

    def short_name(self, name: str) -> str:
        """The name by which `name` knows a thing, without loading anything: that of `src/my.py:X` is `my.py:X`."""
        found = OWN.fullmatch(name)
        return name if found is None else f"{Path(found[1]).name}:{found[2]}"

    def accepts(self, thing: Any) -> bool:
        """Whether something is of this kind."""
        if not self.base:
            return inspect.isfunction(thing)
        return isinstance(thing, type) and issubclass(thing, Entry(self.base, "").load())

    def register(self, thing: Any, name: str, where: str | None = None) -> None:
        """Make a thing known by a name; one of the same name is replaced, unless it is perdure's."""
        if not self.accepts(thing) and not (self.functions and inspect.isfunction(thing)):
            what = f"a class that extends {self.base.replace(':', '.')}" if self.base else "a function"
            what += ", or a function that makes one" if self.functions else ""
            raise WrongValue(f"{name} cannot be {article(self.kind)}, which is {what}")
        if name in self._shipped:
            raise WrongValue(f"{name} is {article(self.kind)} of perdure; register yours by another name")
        place = _place(thing) if where is None else where
        about = f"yours, in {place.rpartition(':')[0]}" if place else "yours, typed into a prompt"
        self._own[name] = OwnEntry(thing, place, _checksum(thing, place), about)

    def own(self, name: str) -> dict[str, str] | None:
        """Where a thing of the user's own is, and its checksum; None for all others."""
        found = self._own.get(name)
        return None if found is None else {"where": found.where, "checksum": found.checksum}

    def restore(self, name: str, code: Mapping[str, str]) -> None:
        """Make known again what a specification names, from the file it was in, if that may be run and is the same."""
        known = self.own(name)
        if known is None:
            path, _, attribute = code["where"].rpartition(":")
            file = _allowed.get(Path(path).name)
            if file is None:
                raise WrongValue(
                    f"{name} is from {Path(path).name or 'a prompt'}, a file of yours that is run only if you name it: "
                    "give it with --code (code= in Python)"
                )
            self.register(_from_file(file, attribute), name, f"{file}:{attribute}")
            known = self.own(name)
        assert known is not None
        if known["checksum"] != code["checksum"]:
            raise WrongValue(
                f"{name} has changed since: its file had checksum {code['checksum']} and has {known['checksum']} now; "
                "bring the earlier file back, or run it anew and name the new run by its hash"
            )

    def _name_of(self, thing: Any) -> str:
        place = f"{getattr(thing, '__module__', '')}:{getattr(thing, '__qualname__', '')}"
        for name, entry in self.entries().items():
            if entry.where == place or (isinstance(entry, OwnEntry) and entry.thing is thing):
                return name
        found = _place(thing)
        # What can be found in a file has the same name here and on the command line, and so the same runs.
        name = self.short_name(found) if OWN.fullmatch(found) else getattr(thing, "__name__", str(thing))
        self.register(thing, name)
        return name


def article(kind: str) -> str:
    return f"an {kind}" if kind[0] in "aeiou" else f"a {kind}"


# --- files of the user's ---

_allowed: dict[str, Path] = {}  # file name → the file that the user of this process named
_modules: dict[tuple[Path, str], ModuleType] = {}  # what was run, by file and checksum
loading: list[Path] = []  # files that are being run at the moment


def allow(path: str | Path) -> None:
    """Let a file be run where a record or a specification asks for it."""
    file = expanded(path)
    _allowed[file.name] = file.resolve()


def allow_all(paths: str | Path | Sequence[str | Path]) -> None:
    """The same for one file or several."""
    for path in [paths] if isinstance(paths, str | Path) else paths:
        allow(path)


def own_kind(name: str) -> "Registry | None":
    """The kind of what `my.py:Careful` names, a function being a benchmark; None for any other name."""
    if not OWN.fullmatch(name):
        return None
    path, _, attribute = name.rpartition(":")
    thing = _from_file(expanded(path), attribute)
    return next((kind for kind in (methods, networks, probes, benchmarks) if kind.accepts(thing)), None)


def own_name(name: str) -> str:
    """The short name of what `src/my.py:Careful` names, which becomes known by it; any other name as it is."""
    kind = own_kind(name)
    return name if kind is None else kind.name(name)


def _from_file(path: Path, attribute: str) -> Any:
    """Run a file, once for each content, and take something from it."""
    allow(path)
    file = path.resolve()
    try:
        if file.exists() and not file.is_file():  # a pipe or a device may have no end
            raise OSError(errno.EINVAL, "it is no plain file")
        key = file, _sum(file.read_bytes())
    except OSError as error:
        raise WrongValue(
            f"{short(path, 1000)}: cannot be read ({error.strerror}); name a Python file of yours"
        ) from None
    if key not in _modules:
        _modules[key] = _run(file, key[1])
    if not hasattr(_modules[key], attribute):
        raise UnknownName(f"name in {path}", attribute, [n for n in vars(_modules[key]) if not n.startswith("_")])
    return getattr(_modules[key], attribute)


def _run(file: Path, checksum: str) -> ModuleType:
    main = sys.modules.get("__main__")
    if main is not None and getattr(main, "__file__", None) and Path(str(main.__file__)).resolve() == file:
        return main  # the script that is running names itself
    name = f"{file.stem}_{checksum}"
    spec = spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[name] = module  # where dataclasses and inspect look for it
    if str(file.parent) not in sys.path:
        sys.path.append(str(file.parent))  # its neighbors can be imported, but hide nothing that is installed
    loading.append(file)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise WrongValue(in_a_line(error, file)) from None
    finally:
        loading.pop()
    return module


def in_a_line(error: BaseException, file: Path | None = None) -> str:
    """An error of code that is not perdure's, and where it came from: a line of `file`, or of any file of the user's.

    >>> in_a_line(KeyError("heads.0.weight"))
    "KeyError: 'heads.0.weight'"
    """
    files = {str(known) for known, _ in _modules} if file is None else {str(file)}
    code = ((frame.tb_frame.f_code.co_filename, frame.tb_lineno) for frame in _frames(error))
    where = next((f"{Path(name).name}, line {line}: " for name, line in code if name in files), "")
    if file is not None and not where:
        where = f"{file.name}: "
    return f"{where}{type(error).__name__}: {' '.join(str(error).split())}"


def _frames(error: BaseException) -> Iterator[Any]:
    """The innermost first."""
    frames, trace = [], error.__traceback__
    while trace is not None:
        frames.append(trace)
        trace = trace.tb_next
    return reversed(frames)


def check_not_loading() -> None:
    """Runs are not started while a file is only being read."""
    if loading:
        raise WrongValue(
            f'{loading[-1].name} starts runs when it is imported; put them under `if __name__ == "__main__":`'
        )


def _place(thing: Any) -> str:
    try:
        file = inspect.getsourcefile(thing)
    except TypeError:
        file = None
    return f"{Path(file).resolve()}:{thing.__qualname__}" if file and Path(file).is_file() else ""


def _checksum(thing: Any, place: str) -> str:
    if place:
        return _sum(Path(place.rpartition(":")[0]).read_bytes())
    return _sum(repr([_compiled(f.__code__) for f in _functions(thing)]).encode())


def _functions(thing: Any) -> list[Any]:
    found = [thing, *(vars(thing).values() if isinstance(thing, type) else ())]
    return [inspect.unwrap(f) for f in found if inspect.isfunction(f)]


def _compiled(code: CodeType) -> list[Any]:
    inner = [_compiled(c) if isinstance(c, CodeType) else repr(c) for c in code.co_consts]
    return [code.co_code.hex(), code.co_names, inner]


def _sum(content: bytes) -> str:
    return blake2b(content, digest_size=8).hexdigest()


# --- what there is ---

methods = Registry(
    "method",
    {
        "finetune": Entry("perdure.methods.finetune:FineTune", "plain SGD, task after task: the lower bound"),
        "mtl": Entry("perdure.methods.mtl:MTL", "all tasks at once: the upper bound, not a continual learner"),
        "ewc": Entry("perdure.methods.ewc:EWC", "elastic weight consolidation (Kirkpatrick et al. 2017)"),
        "er": Entry("perdure.methods.er:ER", "experience replay from a reservoir (Chaudhry et al. 2019)"),
        "agem": Entry("perdure.methods.agem:AGEM", "averaged gradient episodic memory (Chaudhry et al. 2019)"),
        "owm": Entry("perdure.methods.owm:OWM", "orthogonal weights modification (Zeng et al. 2019)"),
        "gpm": Entry("perdure.methods.gpm:GPM", "gradient projection memory (Saha et al. 2021)"),
        "pat": Entry("perdure.methods.pat:PAT", "projected adversarial training: GPM on attacked images"),
        "sgp": Entry("perdure.methods.sgp:SGP", "scaled gradient projection (Saha and Roy 2023)"),
        "trgp": Entry("perdure.methods.trgp:TRGP", "trust region gradient projection (Lin et al. 2022)"),
        "fsdgpm": Entry("perdure.methods.fsdgpm:FSDGPM", "flattened, dynamic gradient projection (Deng et al. 2021)"),
        "api": Entry("perdure.methods.api:API", "adaptive plasticity improvement (Liang and Li 2023)"),
        "dfgp": Entry("perdure.methods.dfgp:DFGP", "data-augmented flat gradient projection (Yang et al. 2023)"),
        "rcl": Entry("perdure.methods.rcl:RCL", "robust features, robust weights, projected gradient (the paper)"),
    },
    base="perdure.methods.method:Method",
)

networks = Registry(
    "network",
    {
        "alexnet": Entry("perdure.nets.alexnet:AlexNet", "five layers, 6.5 M weights (CIFAR-100 in the papers)"),
        "alexnet-fsdgpm": Entry("perdure.nets.alexnet:OneNormAlexNet", "the same with one batch norm: FS-DGPM's own"),
        "alexnet-slim": Entry("perdure.nets.alexnet:SlimAlexNet", "the same, 16-32-64 filters and 256 units"),
        "resnet18": Entry("perdure.nets.resnet18:ResNet18", "reduced, 20-160 filters (5-Datasets, MiniImageNet)"),
        "mlp": Entry("perdure.nets.mlp:MLP", "linear layers and ReLU"),
    },
    base="torch.nn:Module",
    functions=True,
)

benchmarks = Registry(
    "benchmark",
    {
        "six": Entry("perdure.data.benchmarks.six:six", "six tasks of five classes, shipped in the package"),
        "cifar100": Entry("perdure.data.benchmarks.cifar100:cifar100", "Split CIFAR-100: ten tasks of ten classes"),
        "five": Entry("perdure.data.benchmarks.five:five", "CIFAR-10, MNIST, SVHN, Fashion-MNIST, notMNIST"),
        "miniimagenet": Entry(
            "perdure.data.benchmarks.miniimagenet:miniimagenet", "Split MiniImageNet: twenty tasks of five classes"
        ),
        "pmnist": Entry("perdure.data.benchmarks.pmnist:pmnist", "permuted MNIST: ten tasks of ten digits"),
        "folder": Entry("perdure.data.benchmarks.folder:folder", "your own images as folder:PATH, one folder per task"),
        "synthetic": Entry("perdure.data.benchmarks.synthetic:synthetic", "made on the spot in no time, for tests"),
    },
)

probes = Registry(
    "probe",
    {
        "fgsm": Entry("perdure.probes.robustness:FGSM", "accuracy under one-step attacks"),
        "pgd": Entry("perdure.probes.robustness:PGD", "accuracy under attacks of many steps"),
        "apgd": Entry(
            "perdure.probes.robustness:APGD", "accuracy under attacks that choose their steps, by two losses"
        ),
        "apgd-t": Entry("perdure.probes.robustness:APGDTargeted", "accuracy under APGD towards each wrong class"),
        "fab": Entry("perdure.probes.robustness:FAB", "accuracy under a search for the nearest wrong answer"),
        "square": Entry("perdure.probes.robustness:Square", "accuracy under a black-box attack by random squares"),
        "noise": Entry("perdure.probes.robustness:Noise", "accuracy under random noise of an attack's size"),
        "masking": Entry("perdure.probes.masking:Masking", "is the robustness real, or are gradients masked?"),
        "transfer": Entry("perdure.probes.transfer:Transfer", "attacks made on one run and tried on others"),
        "over-time": Entry("perdure.probes.over_time:OverTime", "robust accuracy of each task over time"),
        "smoothing": Entry("perdure.probes.smoothing:Smoothing", "certified accuracy, by randomized smoothing"),
        "corruption": Entry("perdure.probes.corruption:Corruption", "accuracy on noisy, blurred, foggy … images"),
        "outliers": Entry("perdure.probes.outliers:Outliers", "what outliers do to losses and gradients (Eqs. 2–4)"),
        "flatness": Entry(
            "perdure.probes.flatness:Flatness", "how far the loss can rise near the weights (Eq. 5), and SAM's"
        ),
        "curvature": Entry("perdure.probes.flatness:Curvature", "largest eigenvalue and trace of the loss's Hessian"),
        "landscape": Entry("perdure.probes.landscape:Landscape", "the loss along random directions of the weights"),
        "plane": Entry("perdure.probes.landscape:Plane", "the loss in a random plane of the weights"),
        "geometry": Entry(
            "perdure.probes.geometry:Geometry", "how features lie on the sphere: spread, aligned, overlapping"
        ),
        "capacity": Entry("perdure.probes.capacity:Capacity", "how full each layer is, and how many more tasks fit"),
        "calibration": Entry("perdure.probes.calibration:Calibration", "whether confidence is worth what it says"),
    },
    base="perdure.probes.probe:Probe",
)

augmentations = Registry(
    "augmentation",
    {
        "flip": Entry("perdure.train.augment:flip", "each image mirrored left to right, or not"),
        "crop": Entry("perdure.train.augment:crop", "each image moved by up to four pixels"),
    },
)

KINDS = (methods, networks, benchmarks, probes, augmentations)


def register(thing: Any, name: str | None = None) -> str:
    """Make a method, network, benchmark or probe of yours known by a name, by default its own, and return it.

    `perdure.run("careful", "six")` then finds it, and so do studies, searches and probes of this program.

    >>> from perdure import Method
    >>> class Careful(Method):
    ...     pass
    >>> register(Careful, "careful")
    'careful'
    """
    kind = next((kind for kind in (methods, networks, probes, benchmarks) if kind.accepts(thing)), None)
    if kind is None:
        raise WrongValue(
            f"{thing!r} is none of: a class that extends Method, Backbone or Probe, a function that returns a Stream"
        )
    found = name or thing.__name__
    kind.register(thing, found)
    return found
