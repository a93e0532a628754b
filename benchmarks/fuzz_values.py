"""Give odd values to every option of the command line, and to all that methods, plans, benchmarks and probes take.

    python benchmarks/fuzz_values.py --seed 1 [--cases 1000]
    python benchmarks/fuzz_values.py --seed 1 --repeat 57                  one case again, with all that it printed

Options are those that the command line itself declares, values those of the schema. Each case is a command in a process
with limits on time and memory (`fuzz_cases.py`): with `--dry`, with a device that does not exist, so that it stops when
all is checked, or, where the value asks for little work, with two small tasks. What may come of it:

    accepted        exit code 0; a run that was made can be listed
    one line        another exit code, and what is wrong in a line

Failures are tracebacks, signals, no end, more memory than a bound, errors of several lines or beyond all length, and
changes of files that are none of perdure's. Exit code 1 if there is one.
"""

import argparse
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Literal, get_args, get_origin

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "tests" / "data")]

import typer  # noqa: E402
from fuzz_cases import Outcome, Tally, changed, empty, forked, import_all, perdure, stamps  # noqa: E402
from image_files import picture  # noqa: E402

from perdure import registry  # noqa: E402
from perdure.lab.run import run  # noqa: E402
from perdure.lab.spec import settings_of  # noqa: E402
from perdure.schema import Limits, Value, values_of  # noqa: E402
from perdure.train.plan import Plan  # noqa: E402

CLASSES = ("accepted", "one line")
LITTLE = 50  # the largest number that may ask for work which is then done

NUMBERS = """
    0 -0 -1 1 2 3 0.5 1.5 -0.5 1e-9 1e-400 1e30 1e308 1e400 nan -nan inf -inf NaN 1/0 0/1 1/255 51/255 1/3/4
    -1/2 1e3/2 1,2 2,1 1,,2 , 1,2,3,4 0,0 0x10 1_000 ٣ １ ½ 64MB -1MB 1e3MB 0.5B 1KiB 9KB 1..2 1..2:log 0..1:log
    2..1 nan..1 1..inf 1.. 9223372036854775807 9223372036854775808 2147483648 4294967296 18446744073709551616
    99999999999999999999
""".split()  # noqa: SIM905 — a list of seventy strings reads worse
WORDS = """
    none None null true false yes x X é 😀 猫 [red]x[/red] [/] :cat: =1+1 - . %s%n {0} $HOME ' " \\ x=y = a.b .a
    a..b gpm synthetic six rcl,gpm pgd fgsm() fgsm( pgd(steps=) pgd(steps=1,2) labels:0.2 labels:2 labels:0.2@0
    foreign:1e-9 labels:0.5@1-2 labels:nan cuda cuda:99 cpu:0 meta mps xla cpu:-1 my:1 local tensorboard
    tensorboard:/dev/null wandb mlflow csv latex markdown run task finished stored-data plan.lr lr=1 rate=x
""".split()  # noqa: SIM905
PATHS = """
    ~ ~nobody ~nobody/x ../.. /dev/null /dev/full /proc/self/mem /proc/x nowhere nowhere/x mine.txt mine.txt/x
    pipe zero photos folder: folder:photos folder:/dev/null folder:~nobody folder:pipe folder:.. folder:mine.txt
    study.toml pipe.toml zero.toml pipe.py:X zero.py:X empty.py:X broken.py:X folder.py:X nowhere.py:X good.py:X
    good.py:Y good.py:function ~nobody/x.py:X pipe.py zero.py good.py .py:X :X x.py: runs runs.csv
    nowhere/runs.csv runs.parquet
""".split()  # noqa: SIM905
TEXTS = [
    *(
        "",
        " ",
        "\t",
        "two\nlines",
        "\x1b[2J",
        "\u202e",
        "\u2028",
        "e\u0301",
        "\udcff",
        "a b",
        " 1",
        "1 ",
        "--",
        "--json",
    ),
    *(
        "9" * 400,
        "0." + "3" * 400,
        "a" * 300,
        "a" * 5000,
        "a/" * 1500,
        "=" * 1000,
        "(" * 1000,
        "1," * 2000,
        "x" * 100_000,
    ),
    *(
        "folder:" + "a" * 5000,
        "a" * 5000 + ".py:X",
        "pgd(" + "steps=1 " * 2000 + ")",
        "labels:0.1+" * 500 + "labels:0.1",
    ),
]
VALUES = [*NUMBERS, *NUMBERS, *WORDS, *PATHS, *TEXTS]


# --- where values go ---


@dataclass(frozen=True)
class Slot:
    """A place for a value: `{}` in one of the words."""

    kind: str
    words: tuple[str, ...]  # of a command that does little, if the value asks for little
    light: tuple[str, ...]  # of one that does nothing, whatever the value is
    edges: tuple[str, ...] = ()  # values that are just allowed, or just not

    def filled(self, value: str) -> tuple[str, ...]:
        numbers = re.findall(r"\d+(?:\.\d*)?(?:[eE][+-]?\d+)?", value)
        little = all(float(number) <= LITTLE for number in numbers)
        return tuple(word.replace("{}", value) for word in (self.words if little else self.light))


SMALL = ("--net", "mlp", "--tasks", "2", "--plan", "epochs=1", "--data", "size=8", "--data", "per_class=6")
NOWHERE = ("--device", "nowhere")
RUN = ("run", "finetune", "synthetic", *SMALL)
COMPARE = ("compare", "finetune", "gpm", "synthetic", "--seeds", "1", "--dry", *SMALL)
SEARCH = ("search", "gpm", "synthetic", *SMALL, "--space", "plan.lr=0.01,0.1", "--trials", "1", *NOWHERE)
# Commands by what they are called: one that does little, and one that does nothing; their options are read off them.
COMMANDS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "run": (RUN, (*RUN, *NOWHERE)),
    "demo": (("demo", *NOWHERE),) * 2,
    "compare": (COMPARE, COMPARE),
    "study": (("study", "study.toml", "--dry"),) * 2,
    "search": (SEARCH, SEARCH),
    "probe": (("probe", "finetune", "fgsm", "--dry"),) * 2,
    "show": (("show", "gpm"),) * 2,
    "ls": (("ls", "runs"),) * 2,
    "export-runs": (("export-runs",),) * 2,
    "rm": (("rm", "finetune"),) * 2,
    "bench": (("bench", "--folder", "nowhere"),) * 2,
    "data ls": (("data", "ls"),) * 2,
    "data check": (("data", "check", "folder:photos"),) * 2,
    "data fetch": (("data", "fetch", "nothing"),) * 2,
}
ARGUMENTS: tuple[tuple[str, ...], ...] = (
    ("run", "{}", "synthetic", *SMALL, *NOWHERE),
    ("run", "finetune", "{}", *SMALL, *NOWHERE),
    ("compare", "{}", "synthetic", "--seeds", "1", "--dry", *SMALL),
    ("compare", "gpm", "{}", "--seeds", "1", "--dry", *SMALL),
    ("search", "{}", "synthetic", "--space", "plan.lr=0.01,0.1", *NOWHERE),
    ("study", "{}", "--dry"),
    ("probe", "{}", "fgsm", "--dry"),
    ("probe", "finetune", "{}", "--dry"),
    ("show", "{}"),
    ("show", "gpm", "--on", "{}"),
    ("ls", "{}"),
    ("ls", "runs", "{}"),
    ("export-runs", "{}"),
    ("rm", "{}"),
    ("rm", "{}", "--yes"),
    ("data", "check", "{}"),
    ("{}",),
    ("data", "{}"),
    ("run", "gpm", "synthetic", *SMALL, *NOWHERE, "--set", "{}"),
    ("run", "gpm", "synthetic", *SMALL, *NOWHERE, "--set", "{}=1"),
    ("run", "gpm", "synthetic", *SMALL, *NOWHERE, "--plan", "{}=1"),
    (*RUN, "--probe", "{}"),
    (*RUN, "--outliers", "labels:{}"),
    (*RUN, "--outliers", "{}:0.1"),
    (*RUN, "--outliers", "labels:0.1@{}"),
    (*SEARCH, "--space", "threshold={}"),
    (*SEARCH, "--space", "samples={}..{}"),
    (*SEARCH, "--space", "plan.rate={}..1:log"),
    (*SEARCH, "--space", "{}=1..2"),
)
LEFT_OUT = {("study", "--on"), ("search", "--on"), ("bench", "--folder"), ("data fetch", "--root")}  # they would begin


def slots() -> dict[str, list[Slot]]:
    """By kind."""
    found: dict[str, list[Slot]] = {}
    for slot in (*_options(), *_arguments(), *_values()):
        found.setdefault(slot.kind, []).append(slot)
    return found


def _options() -> Iterator[Slot]:
    """Every option that takes a value."""
    group: Any = typer.main.get_command(registry_app())
    for name, (little, light) in COMMANDS.items():
        command = group
        for word in name.split():
            command = command.commands[word]
        for param in command.params:
            if param.param_type_name == "option" and not param.is_flag and (name, param.opts[0]) not in LEFT_OUT:
                yield Slot("options", (*little, param.opts[0], "{}"), (*light, param.opts[0], "{}"))


def registry_app() -> typer.Typer:
    from perdure.cli.main import app

    return app


def _arguments() -> Iterator[Slot]:
    for words in ARGUMENTS:
        stopped = words if "--device" in words or words[0] != "run" else (*words, *NOWHERE)
        yield Slot("arguments", words, stopped)


def _values() -> Iterator[Slot]:
    """Every value of the schema."""
    for method in registry.methods:
        words = ("run", method, "synthetic", *SMALL)
        yield from _named("set", words, "--set", values_of(registry.methods.load(method)))
    yield from _named("plan", RUN, "--plan", values_of(Plan))
    for benchmark in registry.benchmarks:
        settings = settings_of(registry.benchmarks.load(benchmark))
        place = "folder:photos" if benchmark == "folder" else benchmark
        words = ("run", "finetune", place, "--tasks", "1", "--net", "mlp", "--plan", "epochs=1")
        small = ("--data", "size=8", "--data", "per_class=6") if benchmark == "synthetic" else ()
        yield from _named("data", (*words, *small), "--data", settings)
    for probe in registry.probes:
        own = values_of(registry.probes.load(probe))
        for name, value in own.items():
            asked, edges = f"{probe}({name}={{}})", tuple(_edges(value))
            yield Slot("probes", (*RUN, *NOWHERE, "--probe", asked), (*RUN, *NOWHERE, "--probe", asked), edges)
            dry = ("probe", "finetune", probe, "--dry", "--set", f"{name}={{}}")
            yield Slot("probes", dry, dry, edges)


def _named(kind: str, words: tuple[str, ...], option: str, values: dict[str, Value]) -> Iterator[Slot]:
    for name, value in values.items():
        more = (option, f"{name}={{}}")
        yield Slot(kind, (*words, *more), (*words, *NOWHERE, *more), tuple(_edges(value)))


def _edges(value: Value) -> Iterator[str]:
    """The bounds of a value and their neighbors, or the words that it takes, in other spellings, too."""
    for part in _parts(value.type):
        if isinstance(part, Limits):
            for bound in (part.ge, part.gt, part.le, part.lt):
                if bound is not None:
                    yield from (
                        f"{bound:g}",
                        f"{bound - 1:g}",
                        f"{bound + 1:g}",
                        repr(bound - 1e-9),
                        repr(bound + 1e-9),
                    )
        elif isinstance(part, str):
            yield from (part, part.upper(), f"{part} ", f"{part},{part}", part[:-1])


def _parts(kind: Any) -> Iterator[Any]:
    if get_origin(kind) is Literal or isinstance(kind, Limits):
        yield from get_args(kind) if get_args(kind) else (kind,)
        return
    yield from (part for inner in (*get_args(kind), *getattr(kind, "__metadata__", ())) for part in _parts(inner))


# --- cases ---


def make() -> None:
    """What the values name: a finished run, images, a study, and files that are no files."""
    run(
        "finetune",
        "synthetic",
        net="mlp",
        tasks=2,
        plan={"epochs": 1},
        settings={"size": 8, "per_class": 6},
        pictures=False,
    )
    for place in ("1/cat", "1/dog", "2/oak", "2/elm"):
        for number in range(4):
            picture(Path("photos", place, f"{number}.png"), level=20 * number, size=(8, 8))
    study = 'methods = ["finetune"]\nbenchmarks = ["synthetic"]\nseeds = [1]\ntasks = 1\nnetwork = "mlp"\n'
    Path("study.toml").write_text(study + "settings = { size = 8, per_class = 6 }\nplan = { epochs = 1 }\n")
    Path("mine.txt").write_text("mine\n")
    Path("good.py").write_text("class X:\n    pass\n\n\ndef function(seed):\n    return []\n")
    Path("empty.py").write_text("")
    Path("broken.py").write_text("raise ValueError('two\\nlines')\n")
    Path("folder.py").mkdir()
    for name in ("pipe", "pipe.py", "pipe.toml"):
        os.mkfifo(name)
    for name in ("zero", "zero.py", "zero.toml"):
        Path(name).symlink_to("/dev/zero")


THEIRS = ("mine.txt", "photos", "study.toml", "good.py", "empty.py", "broken.py", "folder.py", "pipe", "zero")


class Fuzzer:
    """A world with the working directory two folders deep, so that `../..` is in it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.world = folder, folder / "world"
        self.here = self.world / "a" / "b"
        home = str(self.world / "home")
        self.environment = {"PERDURE_CACHE": home, "PERDURE_DATA": home, "HOME": home, "COLUMNS": "200"}
        empty(self.here)
        made = forked(make, self.here, self.environment)
        if made.code:
            raise SystemExit(f"cannot make what is needed: {made.err}")
        self.world.rename(folder / "good")

    def case(self, words: Sequence[str]) -> tuple[Outcome, str, str]:
        """What came of a command: how it ended, what is wrong, if anything, and else its class."""
        shutil.rmtree(self.world, ignore_errors=True)
        _copy(self.folder / "good", self.world)
        before = stamps(self.here)
        outcome = forked(perdure(*words), self.here, self.environment)
        touched = [name for name in changed(before, stamps(self.here), ()) if name.split("/")[0] in THEIRS]
        fault = outcome.fault or (f"changed {', '.join(touched[:5])}" if touched else "")
        if not fault and outcome.code == 0 and words[0] == "run":
            listed = forked(perdure("ls", "runs", "--json"), self.here, self.environment)
            fault = listed.fault or ("left a run that cannot be read" if '"damaged"' in listed.out else "")
        return outcome, fault, "one line" if outcome.code else "accepted"


def _copy(source: Path, target: Path) -> None:
    """A folder with pipes in it, of which shutil would read all."""
    target.mkdir()
    for path in source.iterdir():
        other = target / path.name
        if path.is_symlink():
            other.symlink_to(path.readlink())
        elif path.is_dir():
            _copy(path, other)
        elif path.is_fifo():
            os.mkfifo(other)
        else:
            shutil.copy2(path, other)


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--repeat", type=int, metavar="N", help="do this case alone, and print all of it")
    args = parser.parse_args(words)
    import_all()
    places, tally = slots(), Tally(CLASSES)
    with tempfile.TemporaryDirectory() as folder:
        fuzzer = Fuzzer(Path(folder).resolve())
        for number in range(args.cases) if args.repeat is None else [args.repeat]:
            chance = Random(f"{args.seed}/{number}")
            slot = chance.choice(places[chance.choice(list(places))])
            value = chance.choice(slot.edges if slot.edges and chance.random() < 0.3 else VALUES)
            asked = slot.filled(value)
            outcome, fault, verdict = fuzzer.case(asked)
            if args.repeat is not None:
                print(f"{asked}\n{outcome.out}{outcome.err}{fault or verdict}")
            if fault:
                again = f"python benchmarks/fuzz_values.py --seed {args.seed} --repeat {number}"
                tally.fail(slot.kind, str(number), f"perdure {' '.join(asked)!r:.300}", fault, again)
            else:
                tally.add(slot.kind, verdict)
    tally.print()
    return 1 if tally.failures else 0


if __name__ == "__main__":
    sys.exit(main())
