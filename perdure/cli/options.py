"""What all verbs share: options, the two consoles, and errors in one clear line."""

import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Annotated, ParamSpec

import typer
from rich.console import Console

from perdure.errors import PerdureError, WrongValue

P = ParamSpec("P")
stdout = Console(highlight=False)
stderr = Console(stderr=True, highlight=False)

AsJson = Annotated[bool, typer.Option("--json", help="Data on standard output and nothing else.")]
Root = Annotated[
    Path | None, typer.Option(help="Where the image files are.", show_default="PERDURE_DATA, else the user's cache")
]
Out = Annotated[Path, typer.Option(help="Where records go.")]
Store = Annotated[Path, typer.Option(help="Where records are.")]
Device = Annotated[str, typer.Option(help="Where to compute: cpu, cuda, cuda:1, mps.")]
Trackers = Annotated[list[str], typer.Option(metavar="NAME[:PLACE]", help="Also log to tensorboard, mlflow or wandb.")]
MethodName = Annotated[str, typer.Argument(help="A method, see `perdure ls methods`, or my.py:NAME for yours.")]
BenchmarkName = Annotated[
    str, typer.Argument(help="A benchmark, see `perdure ls benchmarks`; folder:PATH or my.py:NAME for yours.")
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
Tasks = Annotated[int | None, typer.Option(min=1, help="Only the first N tasks.")]
NetworkName = Annotated[
    str | None, typer.Option("--net", help="Another network, see `perdure ls networks`, or my.py:NAME for yours.")
]

Probes = Annotated[
    list[str], typer.Option("--probe", help="Also measure, e.g. fgsm or 'pgd(steps=50)'; see `perdure ls probes`.")
]
Outliers = Annotated[
    str,
    typer.Option(
        metavar="KIND:RATE[@TASKS]",
        help="Contaminate training data, e.g. labels:0.2 or foreign:0.1@2-4; labels, corrupted, adversarial, foreign.",
    ),
]


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
            sys.stderr.close()
            raise typer.Exit(0) from None

    return run


def print_error(error: PerdureError | str) -> None:
    note(f"perdure: {error}")


def note(text: str, end: str = "\n") -> None:
    """A line for the user, on standard error."""
    stderr.print(text, markup=False, soft_wrap=True, end=end)
