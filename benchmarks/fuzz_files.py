"""Change one file of a store, of a checkpoint, of an image set, of a folder of images or of a study, and read it.

    python benchmarks/fuzz_files.py --seed 1 [--cases 1000] [--only store|checkpoint|data|folder|study]
    python benchmarks/fuzz_files.py --seed 1 --repeat checkpoint/57        one case again, with all that it printed

Good files are made in a temporary folder first: finished, failed and unfinished runs on `synthetic`, small image sets
in their distributors' layouts, a folder of images, a study. Each case damages one of them, puts something else in its
place, or changes what it says with the right checksums (`fuzz_edits.py`), and gives a command that reads it to a
process with limits on time and memory (`fuzz_cases.py`). What may come of it:

    same            the command says what it says of the good file
    one line        the file is named in a line, with or without an exit code
    set aside       a run has renamed the file, said so, and gone on
    other content   the file says something else, and so does the command: no checksum covers it, or it was put right

Failures are tracebacks, signals, no end, more memory than a bound, a file changed that the command has no business
with, and a damaged file that was believed although a checksum covers it. Exit code 1 if there is one.
"""

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import chdir
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from functools import partial
from itertools import count
from pathlib import Path
from random import Random
from typing import Any, Literal, get_args

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "tests"), str(HERE.parent / "tests" / "data")]

import image_sets  # noqa: E402
from fuzz_cases import Outcome, Tally, changed, empty, forked, import_all, perdure, stamps  # noqa: E402
from fuzz_edits import DAMAGE, PLACE, forge  # noqa: E402
from image_files import picture  # noqa: E402

from perdure import registry  # noqa: E402
from perdure.errors import Diverged  # noqa: E402
from perdure.lab import store  # noqa: E402
from perdure.lab.probe_runs import probe  # noqa: E402
from perdure.lab.run import run  # noqa: E402
from perdure.train.callbacks import Callback, StepContext  # noqa: E402

CLASSES = ("same", "one line", "set aside", "other content")
KINDS = ("store", "checkpoint", "data", "folder", "study")
TIMES = (
    "seconds",
    "evaluation_seconds",
    "finished",
    "files",
    "check",
    "epoch",
    "run",
    "seconds_in_parallel",
    "threads",
)
LISTED = '"damaged"'  # the state of a run, in JSON
SAID = (
    "perdure: ",
    "warning: ",
    "damaged: ",
    "newer: ",
    "failed: ",
    "left out: ",
    LISTED,
)  # how lines about files begin

PLAN = {"epochs": 2, "momentum": 0.5, "keep": "best", "batch": 8}
ASKED: dict[str, Any] = {
    "net": "mlp",
    "tasks": 2,
    "plan": PLAN,
    "settings": {"size": 8, "per_class": 6},
    "out": "runs",
    "pictures": False,
}
OPTIONS = ("--net", "mlp", "--tasks", "2", "--out", "runs", "--data", "size=8", "--data", "per_class=6")
OPTIONS += tuple(word for name, value in PLAN.items() for word in ("--plan", f"{name}={value}"))
BUDGET = "30KB"  # of a second GPM, whose bases are in float16
METHODS = [*registry.methods, f"gpm --set budget={BUDGET}"]
STUDY = """\
about = "a study"
methods = ["finetune", "gpm"]
benchmarks = ["synthetic"]
seeds = [1]
tasks = 2
network = "mlp"
probes = ["fgsm"]
threads = 1
against = "gpm"
plan = { epochs = 2, batch = 8, schedule = "steps", milestones = "1" }
settings = { size = 8, synthetic = { per_class = 6 } }
outliers = ["none", "labels:0.2@1"]
[values.gpm]
threshold = [0.9]
[[block]]
methods = ["gpm"]
[[block]]
seeds = [2]
tasks = 1
outliers = "none"
"""


@dataclass(frozen=True)
class Command:
    """A command that reads files."""

    words: tuple[str, ...]
    reads: tuple[str, ...] = ("*",)  # patterns of files
    may_change: tuple[str, ...] = ()
    covered: tuple[str, ...] = ()  # patterns of files that it reads and a checksum covers
    result: Callable[[Outcome], Any] | None = None  # what it came to; what it printed, if there is none


@dataclass(frozen=True)
class Material:
    """Good files, and the commands that read them; `make` writes them into the working directory."""

    kind: str
    name: str
    make: Callable[[], object]
    commands: Callable[[], Sequence[Command]]  # called there, too


# --- good files ---


class StopAfter(Callback):
    """Interrupts a run as a power cut would."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def on_step(self, now: StepContext) -> None:  # noqa: ARG002
        self.steps -= 1
        if self.steps == 0:
            raise PowerCut


class PowerCut(Exception):
    pass


def begin(method: str, steps: int = 12) -> None:
    """A run that was interrupted in the middle of its second task, if it learns one after another."""
    name, values = _split(method)
    try:
        run(name, "synthetic", values=values, callback=StopAfter(steps), checkpoint_every=0, **ASKED)
    except PowerCut:
        return
    raise AssertionError(f"{method} finished within {steps} steps")


def _split(method: str) -> tuple[str, dict[str, str]]:
    name, _, value = method.partition(" --set ")
    return name, dict([value.split("=")]) if value else {}


def make_store() -> None:
    """Two finished runs with probes and snapshots, one that failed, one that was interrupted."""
    Path("study.toml").write_text(STUDY)
    run("gpm", "synthetic", snapshots=True, **ASKED)
    run("finetune", "synthetic", **ASKED)
    probe(["fgsm", "landscape"], ["gpm"], values={"landscape.points": 3}, pictures=False)
    try:
        run("finetune", "synthetic", seed=3, **{**ASKED, "plan": {**PLAN, "rate": 1e30}})
    except Diverged:
        begin("er")


def make_photos() -> None:
    for place in ("1/cat", "1/dog", "2/oak", "2/elm", "2/test/oak", "2/test/elm"):
        for number in range(4):
            picture(Path("photos", place, f"{number}.png"), level=20 * number + len(place), size=(12, 10))
    Path("photos/1/cat/notes.txt").write_text("none\n")
    run("finetune", "folder:photos", net="mlp", plan={"epochs": 1}, settings={"size": 8}, pictures=False)
    shutil.rmtree("runs")


def make_set(folder: str, write: Callable[[Path], object], benchmark: str | None = None) -> None:
    """With its decoded copy, if there is a benchmark that learns from so few images."""
    place = Path("data", folder)
    place.mkdir(parents=True)
    write(place)
    if benchmark is not None:
        run("finetune", benchmark, net="mlp", tasks=1, plan={"epochs": 1}, root="data", pictures=False)
        shutil.rmtree("runs")


# --- commands ---


def printed(outcome: Outcome) -> Any:
    """What a command printed, without times."""
    try:
        return _timeless(json.loads(outcome.out))
    except ValueError:
        return outcome.out


def _timeless(content: Any) -> Any:
    if isinstance(content, dict):
        return {name: _timeless(value) for name, value in content.items() if name not in TIMES}
    return [_timeless(value) for value in content] if isinstance(content, list) else content


def trained(path: str) -> Callable[[Outcome], Any]:
    """The record of a run, without times, and its model."""

    def result(_outcome: Outcome) -> Any:
        try:
            record = json.loads(Path(path, "record.json").read_bytes())
            return _timeless(record), Path(path, "model.safetensors").read_bytes()
        except (OSError, ValueError):
            return None

    return result


def run_path(method: str) -> str:
    (path,) = (str(path) for path in Path("runs/synthetic", method).iterdir())
    return path


INDEX, LOCKS = "runs/.index.json", "runs/.locks"


def store_commands() -> list[Command]:
    gpm, begun = run_path("gpm"), run_path("er")
    failed = max(map(str, Path("runs/synthetic/finetune").iterdir()), key=_unfinished)
    records, probes, whole = f"{gpm}/record.json", f"{gpm}/probes/*.json", (f"{gpm}/*.*",)
    listed = (INDEX, "runs/*/record.json", f"{failed}/failed.json", f"{begun}/spec.toml")
    exported = ("runs/*/record.json", "runs/*/probes/*")
    measured = ("probe", gpm, "fgsm", "landscape", "--set", "landscape.points=3", "--json")
    ls = [
        ("ls", "runs"),
        ("ls", "runs", "--json"),
        ("ls", "runs", "--format", "latex"),
        ("ls", "runs", "gpm", "damaged"),
    ]
    export = [("export-runs",), ("export-runs", "--per", "task", "--json"), ("export-runs", "runs.parquet")]
    show = [("show", gpm), ("show", gpm, "--json"), ("show", gpm, "--format", "markdown")]
    found = [
        *(Command(words, listed, (INDEX,), (INDEX, "runs/*/record.json")) for words in ls),
        *(Command(words, exported, (INDEX, "runs.parquet"), exported) for words in export),
        *(Command(words, (records, probes), (), (records, probes)) for words in show),
        Command(("show", failed), (f"{failed}/*",)),
        Command(("show", begun), (f"{begun}/*",)),
        *[Command(measured, whole, (INDEX, LOCKS, gpm), whole)] * 3,
        Command(("probe", gpm, "fgsm", "--dry"), whole, (INDEX, LOCKS, gpm)),
        Command(("rm", gpm, "--yes"), (f"{gpm}*", "runs/.locks/*"), (INDEX, LOCKS, str(Path(gpm).parent))),
        Command(("study", "study.toml", "--dry", "--json"), ("runs/*/record.json",)),
    ]
    found = [replace(command, words=(*command.words, "--out", "runs")) for command in found]
    again = ("run", "gpm", "synthetic", *OPTIONS)
    for words in ((*again, "--snapshots"), (*again, "--probe", "fgsm")):
        found += [Command(words, (*whole, "runs/.locks/*"), (INDEX, LOCKS, gpm), (), trained(gpm))] * 2
    resume = ("run", "er", "synthetic", *OPTIONS)
    return [*found, Command(resume, (f"{begun}/*",), (INDEX, LOCKS, begun), (), trained(begun))]


def _unfinished(path: str) -> bool:
    return not Path(path, "record.json").exists()


def checkpoint_commands(method: str) -> list[Command]:
    name, values = _split(method)
    path = run_path(name)
    given = tuple(word for key, value in values.items() for word in ("--set", f"{key}={value}"))
    newest = str(max(Path(path, "checkpoint").iterdir()))
    resume = Command(("run", name, "synthetic", *OPTIONS, *given), (newest,), (path, LOCKS), (), trained(path))
    show, ls = ("show", path, "--out", "runs"), ("ls", "runs", "--out", "runs")
    others = [replace(resume, reads=(f"{path}/*",)), Command(show, (f"{path}/*",)), Command(ls, may_change=(INDEX,))]
    return [*[resume] * 7, *others]


def data_commands(name: str) -> list[Command]:
    check = ("data", "check", name, "--root", "data")
    return [Command(check), Command((*check, "--json")), Command(("data", "ls", "--root", "data", "--json"))]


def learning_commands(benchmark: str, name: str) -> list[Command]:
    """An image set that is also learned from, through its decoded copy."""
    options = ("--tasks", "1", "--net", "mlp", "--plan", "epochs=1", "--root", "data", "--out", "runs", "--json")
    learn = Command(("run", "finetune", benchmark, *options), ("data/*",), ("runs", "home"))
    return [*data_commands(name), learn, replace(learn, reads=("home/*",))]


def folder_commands() -> list[Command]:
    options = ("--net", "mlp", "--plan", "epochs=1", "--data", "size=8", "--out", "runs", "--json")
    learn = ("run", "finetune", "folder:photos", *options)
    return [
        Command(("data", "check", "folder:photos"), ("photos*",)),
        Command(("data", "check", "folder:photos", "--json"), ("photos*",)),
        Command(learn, ("home/*",), ("runs", "home")),
        Command(learn, ("photos*",), ("runs", "home")),
        Command((*learn, "--data", "skip_unreadable=true"), ("photos*",), ("runs", "home")),
    ]


def study_commands() -> list[Command]:
    return [
        Command(("study", "study.toml", "--dry", "--json", "--out", "runs")),
        Command(("study", "study.toml", "--dry", "--out", "runs")),
        Command(("show", "study.toml")),
        Command(("show", "study.toml", "--json")),
    ]


IDX, PACKED = image_sets.idx_files, ("images-idx3-ubyte", "labels-idx1-ubyte")
SETS: dict[str, tuple[str, Callable[[Path], object], str]] = {  # layout → folder, writer, name of the set
    "cifar10_binary": ("cifar-10-batches-bin", partial(image_sets.cifar, layout="cifar10_binary"), "cifar10"),
    "cifar10_python": ("cifar-10-batches-py", partial(image_sets.cifar, layout="cifar10_python"), "cifar10"),
    "cifar100_binary": ("cifar-100-binary", partial(image_sets.cifar, layout="cifar100_binary"), "cifar100"),
    "cifar100_python": ("cifar-100-python", partial(image_sets.cifar, layout="cifar100_python"), "cifar100"),
    "idx": ("MNIST/raw", IDX, "mnist"),
    "idx, gzipped": ("FashionMNIST/raw", partial(IDX, packed=PACKED), "fashion-mnist"),
    "svhn": ("svhn", image_sets.svhn, "svhn"),
    "notmnist_pickles": ("notmnist", image_sets.notmnist_pickles, "notmnist"),
    "notmnist_split_folders": ("notMNIST", image_sets.split_letters, "notmnist"),
    "notmnist_folder": ("notMNIST_small", partial(image_sets.letters, per_class=30), "notmnist"),
    "notmnist_idx": ("notMNIST", IDX, "notmnist"),
    "miniimagenet_pickles": ("miniimagenet", image_sets.mini_pickles, "miniimagenet"),
    "miniimagenet_csv": ("miniimagenet", partial(image_sets.mini_tables, count=2), "miniimagenet"),
    "miniimagenet_folders": ("miniimagenet", image_sets.mini_folders, "miniimagenet"),
}
LEARNED = {"idx": "pmnist"}


def materials() -> list[Material]:
    found = [
        Material("store", "store", make_store, store_commands),
        *(Material("checkpoint", m, partial(begin, m), partial(checkpoint_commands, m)) for m in METHODS),
        Material("folder", "folder", make_photos, folder_commands),
        Material("study", "study", lambda: Path("study.toml").write_text(STUDY), study_commands),
    ]
    for layout, (folder, write, name) in SETS.items():
        learned = LEARNED.get(layout)
        commands = partial(data_commands, name) if learned is None else partial(learning_commands, learned, name)
        found.append(Material("data", layout, partial(make_set, folder, write, learned), commands))
    return found


# --- cases ---


@dataclass(frozen=True)
class Said:
    """What a command came to, and the lines that it printed besides."""

    result: Any
    lines: frozenset[str]


@dataclass(frozen=True)
class Good:
    """Material that was made, with what its commands say of it, as far as they were asked."""

    folder: Path
    commands: Sequence[Command]
    said: dict[tuple[str, ...], Said] = field(default_factory=dict)


@dataclass(frozen=True)
class Change:
    how: Literal["damage", "place", "forged", "exchanged", "linked"]
    target: str
    about: str


@dataclass(frozen=True)
class Case:
    about: str
    outcome: Outcome
    fault: str
    verdict: str


class Fuzzer:
    """A folder to work in: `world`, the working directory of all commands, and the good files it is filled from."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.world = folder, folder / "world"
        self.made: dict[str, Good] = {}
        self.environment = {
            "PERDURE_CACHE": str(self.world / "home"),
            "PERDURE_DATA": str(self.world / "data"),
            "HOME": str(self.world / "home"),
            "COLUMNS": "200",
        }

    def good(self, material: Material) -> Good:
        if material.name not in self.made:
            self.made[material.name] = self._make(material)
        return self.made[material.name]

    def _make(self, material: Material) -> Good:
        empty(self.world)
        outcome = forked(partial(_steadily, material.make), self.world, self.environment)
        if outcome.code:
            raise SystemExit(f"cannot make {material.name}: {outcome.err}")
        (self.world / "mine.txt").write_text("mine\n")
        folder = self.folder / f"good {len(self.made)}"
        self.world.rename(folder)
        with chdir(folder):
            return Good(folder, material.commands())

    def expected(self, good: Good, command: Command) -> Said:
        """What a command says of good files."""
        if command.words not in good.said:
            self.fill(good)
            outcome, said, touched = self.do(command)
            if outcome.fault or outcome.code or touched:
                raise SystemExit(f"perdure {' '.join(command.words)}: {outcome.fault or touched or outcome.err}")
            good.said[command.words] = said
        return good.said[command.words]

    def fill(self, good: Good) -> None:
        shutil.rmtree(self.world, ignore_errors=True)
        shutil.copytree(good.folder, self.world, symlinks=True)

    def do(self, command: Command) -> tuple[Outcome, Said, list[str]]:
        """How it ended, what it said, and what it changed that it has no business with."""
        before = stamps(self.world)
        outcome = forked(perdure(*command.words), self.world, self.environment)
        after = stamps(self.world)
        with chdir(self.world):
            result = (command.result or printed)(outcome)
        # A run that is listed as damaged is named, too, where the list is JSON.
        lines = {*outcome.err.splitlines(), *([LISTED] if LISTED in outcome.out else [])}
        return outcome, Said(result, frozenset(lines)), changed(before, after, command.may_change)

    def case(self, material: Material, chance: Random) -> Case:
        """Change one file, read it, and judge what came of it."""
        good = self.good(material)
        command = chance.choice(good.commands)
        expected = self.expected(good, command)
        self.fill(good)
        return self.judge(command, expected, self.change(command.reads, chance))

    def change(self, patterns: Sequence[str], chance: Random) -> Change:
        """One file, mostly of those that are read."""
        paths = sorted(path for path in self.world.rglob("*") if path.name != "mine.txt")
        if chance.random() < 0.9:
            paths = [p for p in paths if any(fnmatch(str(p.relative_to(self.world)), pattern) for pattern in patterns)]
        files, folders = [p for p in paths if p.is_file()], [p for p in paths if p.is_dir()]
        how = chance.choices(get_args(Change.__annotations__["how"]), [30, 15, 43, 8, 4])[0]
        path = chance.choice(folders if how == "place" and folders and chance.random() < 0.3 else files)
        if how == "damage":
            about = chance.choice(DAMAGE)(path, chance)
        elif how == "place":
            about = chance.choice(PLACE)(path, chance)
        elif how == "forged":
            about = forge(path, chance)
        elif how == "exchanged":
            runs = sorted(p for p in self.world.glob("runs/*/*/*") if p.is_dir())
            whole = len(runs) > 1 and chance.random() < 0.3
            about = exchange(*chance.sample(runs, 2)) if whole else exchange(path, chance.choice(files))
        else:
            about = link_out(path, self.world)
        return Change(how, str(path.relative_to(self.world)), about)

    def judge(self, command: Command, expected: Said, change: Change) -> Case:
        """Read a file that was changed."""
        outcome, said, touched = self.do(command)
        news = [line for line in said.lines - expected.lines if line.startswith(SAID)]
        covered = change.how == "damage" and any(fnmatch(change.target, pattern) for pattern in command.covered)
        same, fault = said.result == expected.result, outcome.fault
        if not fault and touched:
            fault = f"changed {', '.join(touched[:5])}"
        elif not fault and not same and not outcome.code:
            if command.result is not None and change.how != "forged":
                fault = "another result than with good files"
            elif covered and not news:
                fault = "believed, although a checksum covers it"
        aside = any(self.world.rglob("*.damaged-*"))
        verdict = "set aside" if aside else "one line" if news or outcome.code else "same" if same else "other content"
        return Case(f"{change.target}: {change.about}; perdure {' '.join(command.words)}", outcome, fault, verdict)


def exchange(path: Path, other: Path) -> str:
    """Two files, or two folders."""
    aside = path.with_name("aside")
    path.rename(aside)
    if other.exists():  # not where it is the same
        other.rename(path)
    aside.rename(other)
    return f"{path.name} and {other.name} exchanged"


def link_out(path: Path, world: Path) -> str:
    """What is written there afterwards must not go through the link."""
    outside = world / "outside" / path.name
    outside.parent.mkdir()
    path.rename(outside)
    path.symlink_to(outside)
    return "a link to the same file elsewhere"


def _steadily(make: Callable[[], object]) -> None:
    """With a clock that ticks evenly, so that the same seed changes the same bytes every time."""
    import time

    ticks = count()
    time.perf_counter = lambda: next(ticks) / 1000
    store._now = lambda: "2026-01-01T00:00:00Z"
    make()


def numbered(kinds: Iterable[str], cases: int) -> list[str]:
    """The names of the cases, kind by kind in turn: checkpoint/57."""
    turn = list(kinds)
    return [f"{turn[number % len(turn)]}/{number // len(turn)}" for number in range(cases)]


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--only", choices=KINDS)
    parser.add_argument("--repeat", metavar="KIND/N", help="do this case alone, and print all of it")
    args = parser.parse_args(words)
    import_all()
    by_kind: dict[str, list[Material]] = {}
    for material in materials():
        by_kind.setdefault(material.kind, []).append(material)
    names = [args.repeat] if args.repeat else numbered([args.only] if args.only else KINDS, args.cases)
    tally = Tally(CLASSES)
    with tempfile.TemporaryDirectory() as folder:
        fuzzer = Fuzzer(Path(folder).resolve())
        for name in names:
            kind, chance = name.partition("/")[0], Random(f"{args.seed}/{name}")
            material = chance.choice(by_kind[kind])
            case = fuzzer.case(material, chance)
            if args.repeat:
                print(f"{case.about}\n{case.outcome.out}{case.outcome.err}{case.fault or case.verdict}")
            if case.fault:
                again = f"python benchmarks/fuzz_files.py --seed {args.seed} --repeat {name}"
                tally.fail(kind, name, f"{material.name}, {case.about}", case.fault, again)
            else:
                tally.add(kind, case.verdict)
    tally.print()
    return 1 if tally.failures else 0


if __name__ == "__main__":
    sys.exit(main())
