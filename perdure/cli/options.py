"""What all verbs share: options, how help reads, the two consoles, and errors in one clear line."""

import errno
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any, ParamSpec

import typer
from rich.console import Console
from typer.core import TyperCommand, TyperGroup
from typer.models import CommandFunctionType

from perdure.data.paths import one_line
from perdure.errors import PerdureError, UsageError, WrongValue, short
from perdure.processes import MOST_THREADS

P = ParamSpec("P")
# Names of files and tasks are printed as they are: brackets are no markup, and :cat: is no picture of one.
stdout = Console(highlight=False, markup=False, emoji=False)
stderr = Console(stderr=True, highlight=False, markup=False, emoji=False)


def _threads(default: str) -> Any:
    says = "Threads of torch; another number changes the last digits."
    return typer.Option(min=1, max=MOST_THREADS, metavar="N", help=says, show_default=default)


AsJson = Annotated[bool, typer.Option("--json", help="Data on standard output and nothing else.")]
Root = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Where the image files are.", show_default="PERDURE_DATA, else the user's cache"),
]
Out = Annotated[Path, typer.Option(metavar="DIR", help="Where records go.")]
Store = Annotated[Path, typer.Option(metavar="DIR", help="Where records are.")]
Device = Annotated[str, typer.Option(metavar="NAME", help="Where to compute: cpu, cuda, cuda:1, mps.")]
Threads = Annotated[int | None, _threads("torch's own")]
Trackers = Annotated[list[str], typer.Option(metavar="NAME[:PLACE]", help="Also log to tensorboard, mlflow or wandb.")]
MethodName = Annotated[
    str, typer.Argument(metavar="METHOD", help="A method, see `perdure ls methods`, or my.py:NAME for yours.")
]
BenchmarkName = Annotated[
    str,
    typer.Argument(
        metavar="BENCHMARK", help="A benchmark, see `perdure ls benchmarks`; folder:PATH or my.py:NAME for yours."
    ),
]
Code = Annotated[
    list[Path], typer.Option(metavar="FILE.py", help="A file of yours that a run needs and that may be run.")
]
PlanWishes = Annotated[
    list[str], typer.Option("--plan", metavar="NAME=VALUE", help="Change how it is trained, e.g. epochs=10.")
]
Settings = Annotated[
    list[str], typer.Option("--data", metavar="NAME=VALUE", help="Set a value of the benchmark, e.g. legacy=true.")
]
Where = Annotated[
    str, typer.Option("--on", metavar="PLACE", help="local, or a Ray cluster: ray, auto or ray://HOST:PORT.")
]
Tasks = Annotated[int | None, typer.Option(min=1, metavar="N", help="Only the first N tasks.")]
NetworkName = Annotated[
    str | None,
    typer.Option("--net", metavar="NAME", help="Another network, see `perdure ls networks`, or my.py:NAME for yours."),
]
Jobs = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="How many runs at a time.", show_default="1, or one per GPU")
]
RunThreads = Annotated[int | None, _threads("1 for a small network, else torch's own")]
StudyThreads = Annotated[
    int | None,
    typer.Option(min=1, max=MOST_THREADS, metavar="N", help="Threads of each run.", show_default="the study's, else 1"),
]
Dry = Annotated[bool, typer.Option("--dry", help="Only say what is done already and what the rest costs.")]

Probes = Annotated[
    list[str],
    typer.Option(
        "--probe", metavar="PROBE", help="Also measure, e.g. fgsm or 'pgd(steps=50)'; see `perdure ls probes`."
    ),
]
Outliers = Annotated[
    str,
    typer.Option(
        metavar="KIND:RATE[@TASKS]",
        help="Contaminate training data, e.g. labels:0.2 or foreign:0.1@2-4; labels, corrupted, adversarial, foreign.",
    ),
]


class Verb(TyperCommand):
    """A verb."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _without_flag_types(super().get_params(ctx))


class VerbGroup(TyperGroup):
    """Several verbs."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _without_flag_types(super().get_params(ctx))


class App(typer.Typer):
    """The front door, or a group of verbs behind it."""

    def command(self, *args: Any, **options: Any) -> Callable[[CommandFunctionType], CommandFunctionType]:
        return super().command(*args, **{"cls": Verb, **options})


def _without_flag_types(params: list[Any]) -> list[Any]:
    """A flag takes no value, so help names none; by itself typer says <bool>."""
    for param in params:
        if getattr(param, "is_flag", False):
            param.metavar = ""
    return params


def numbers(option: str, text: str) -> list[int]:
    """Whole numbers with commas between."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise WrongValue(f"{option} {text} is not allowed; write whole numbers with commas, e.g. 1,2,3") from None


def guarded(action: Callable[P, None]) -> Callable[P, None]:
    """A command whose errors are one clear line."""

    @wraps(action)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            action(*args, **kwargs)
        except PerdureError as error:
            print_error(error)
            raise typer.Exit(error.exit_code) from None
        except KeyboardInterrupt:
            print_error("interrupted; completed work is saved, run the same command to resume")
            raise typer.Exit(130) from None
        except BrokenPipeError:  # the reader went away, e.g. `perdure ls | head`
            _drop_output()
            raise typer.Exit(0) from None
        except OSError as error:
            if error.errno != errno.ENAMETOOLONG:
                raise
            print_error(f"{short(error.filename)}: the name is too long; use a shorter one")
            raise typer.Exit(UsageError.exit_code) from None

    return run


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Around the whole command line: what typer and the system say of wrong usage and of output, in one line, too."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # names that are not UTF-8 are printed as escapes, as JSON has them
            stream.reconfigure(errors="backslashreplace")
    try:
        yield
        if sys.stdout is not None:
            sys.stdout.flush()  # now, and not when Python ends, which would print a traceback
    except UsageProblem as error:
        if type(error).__name__ != "NoArgsIsHelpError":  # which has printed the help
            print_error(_usage_line(error))
        sys.exit(2)
    except (KeyboardInterrupt, typer.Abort):  # before a verb had begun
        print_error("interrupted")
        sys.exit(130)
    except BrokenPipeError:
        _drop_output()
        sys.exit(0)
    except OSError as error:
        # Nothing but a write to an open file lacks a name, and whoever writes other files reports what went wrong.
        if error.filename is not None or error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO):
            raise
        with suppress(OSError):
            print_error(f"cannot write to standard output: {error.strerror}")
        _drop_output()
        sys.exit(1)


# Of click, or of typer's own copy of click: typer exports no other of its errors under one name in all its versions.
UsageProblem: type[Any] = typer.BadParameter.__bases__[0]


def _usage_line(error: Any) -> str:
    """Such as: missing argument 'METHOD' (see `perdure run --help`)"""
    text = short(error.format_message().rstrip("."), 400)
    help_of = error.ctx.command_path if error.ctx is not None else "perdure"
    return f"{text[:1].lower()}{text[1:]} (see `{help_of} --help`)"


def _drop_output() -> None:
    """Nothing can be written any more: let what is left in buffers go nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)


def print_error(error: PerdureError | str) -> None:
    """In one line, whatever names and values it repeats."""
    note(f"perdure: {one_line(error)}")


def note(text: str, end: str = "\n") -> None:
    """A line for the user, on standard error."""
    stderr.print(text, soft_wrap=True, end=end)


def use_threads(threads: int | None) -> None:
    """Let torch compute with so many threads; before it is imported, since its libraries read the environment once."""
    if threads is not None:
        os.environ.update(OMP_NUM_THREADS=str(threads), MKL_NUM_THREADS=str(threads))
        import torch

        torch.set_num_threads(threads)
