"""`perdure create`, `learn`, `predict`, `tasks`, `check`, `rollback`, `forget`, `held`, `card`, `export`, `serve`: a
classifier in a directory that learns task after task. Exit codes: 0 passed, 1 a limit is broken, 3 not verified."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli.options import AsJson, PlanWishes, Threads, guarded, note, numbers, stderr, stdout, use_threads
from perdure.cli.page import Format, Page
from perdure.errors import WrongValue
from perdure.report.table import Column, table

if TYPE_CHECKING:
    from perdure.learner.learner import Learner, ReleaseReport

State = Annotated[Path, typer.Argument(metavar="STATE", help="The directory of a learner.")]
Model = Annotated[
    str | None,
    typer.Option("--net", metavar="NAME", help="The network, where it is yours: my.py:NAME, the same as at first."),
]
TaskName = Annotated[str | None, typer.Option("--task", metavar="NAME", help="Of which task the images are.")]
Tests = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Test images of old tasks, DIR/task/class/image.jpg; they are not kept."),
]
LimitsFile = Annotated[
    Path | None, typer.Option("--limits", metavar="FILE.toml", help="What may be lost of old tasks; see the docs.")
]
TASK_COLUMNS = ("task", "classes", "images", "validation", "revision", "protected")
Seed = Annotated[int, typer.Option(min=0, metavar="N", help="Seed of everything random.")]


def join(app: typer.Typer) -> None:
    """Add these verbs to the command line."""
    for name, action in (
        ("create", create), ("learn", learn), ("predict", predict), ("tasks", tasks), ("check", check),
        ("rollback", rollback), ("forget", forget), ("held", held), ("card", card), ("export", export),
        ("serve", serve),
    ):  # fmt: skip
        app.command(name, rich_help_panel="A deployed model")(guarded(action))


def _open(state: Path, net: str | None) -> "Learner":
    from perdure.learner.learner import Learner

    return Learner.open(state, net)


def create(
    state: State,
    net: Annotated[str, typer.Option(metavar="NAME", help="A network, see `perdure ls networks`, or my.py:NAME.")],
    size: Annotated[
        str, typer.Option("--input", metavar="SIZE", help="Side of its images in pixels, or channels,height,width.")
    ],
    method: Annotated[str, typer.Option(metavar="NAME", help="How tasks are learned: gpm, dfgp, rcl, …")] = "gpm",
    values: Annotated[list[str], typer.Option("--set", metavar="NAME=VALUE", help="Set a value of the method.")] = [],  # noqa: B006
    plan: PlanWishes = [],  # noqa: B006
    classes: Annotated[
        str | None,
        typer.Option(metavar="A,B,…", help="Adopt the head that the model has, with the names of its classes."),
    ] = None,
    reference: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Images that protect the adopted head; they are not kept.")
    ] = None,
    mean: Annotated[str | None, typer.Option(metavar="R,G,B", help="Normalization of all tasks.")] = None,
    std: Annotated[str | None, typer.Option(metavar="R,G,B", help="Normalization of all tasks.")] = None,
    seed: Seed = 1,
    threads: Threads = None,
) -> None:
    """Make a new learner around a network. Refuses a directory that holds one."""
    use_threads(threads)
    from perdure.lab.spec import assignments
    from perdure.learner.learner import Learner

    side = [int(part) if part.strip().isdecimal() else 0 for part in size.split(",")]
    made = Learner.create(
        state,
        net,
        input=(3, side[0], side[0]) if len(side) == 1 else side,
        method=method,
        values=assignments(values),
        plan=assignments(plan),
        classes=None if classes is None else classes.split(","),
        reference=reference,
        mean=_floats("--mean", mean),
        std=_floats("--std", std),
        seed=seed,
    )
    if made.tasks and not made.tasks[0].protected:
        note("warning: the adopted head is not protected without reference images: give some with --reference")
    stdout.print(f"revision {made.revision}: {state}", soft_wrap=True)


def learn(
    state: State,
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="FOLDER/class/image.jpg")],
    task: Annotated[
        str | None, typer.Option("--task", metavar="NAME", help="What to call the task.", show_default="the folder's")
    ] = None,
    more: Annotated[bool, typer.Option("--extend", help="More images of a task that it knows.")] = False,
    test: Annotated[Path | None, typer.Option(metavar="DIR", help="Test images of the new task.")] = None,
    tests: Tests = None,
    limits: LimitsFile = None,
    plan: PlanWishes = [],  # noqa: B006
    net: Model = None,
    seed: Seed = 1,
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Learn a task and check what it cost the old ones; a broken limit leaves everything as it was."""
    use_threads(threads)
    from perdure.cli.progress import RunBars
    from perdure.lab.spec import assignments

    learner = _open(state, net)
    name = task or folder.resolve().name
    given: dict[str, Any] = {"tests": tests, "limits": limits, "seed": seed, "plan": assignments(plan) or None}
    with RunBars(stderr) as bars:
        callback = bars.training(name, 1)
        if more:
            report = learner.extend(name, folder, callback=callback, **given)
        else:
            report = learner.learn(name, folder, test=test, callback=callback, **given)
    _finish(report, as_json)


def predict(
    state: State,
    images: Annotated[list[Path], typer.Argument(metavar="IMAGE…", help="Files, or folders of them.")],
    task: TaskName = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="CSV on standard output.")] = False,
    net: Model = None,
    as_json: AsJson = False,
) -> None:
    """Say of what class images are; without --task, of which task, too, or that it is unknown."""
    from perdure.data.images import list_images

    learner = _open(state, net)
    files = [file for given in images for file in (list_images(given) if given.is_dir() else [given])]
    if not files:
        raise WrongValue("no images are there; name files, or a folder of them")
    answers = learner.predict(files, task)
    rows = [
        {"image": str(file), "task": answer.task, "class": answer.name, "probability": answer.probability,
         "revision": answer.revision}
        for file, answer in zip(files, answers, strict=True)
    ]  # fmt: skip
    if as_json:
        full = [row | {"probabilities": answer.probabilities} for row, answer in zip(rows, answers, strict=True)]
        print(json.dumps(full, ensure_ascii=False))
    elif as_csv:
        from perdure.lab.export import to_csv

        sys.stdout.buffer.write(to_csv(rows))
    else:
        for row in rows:
            said = f"{row['class']} ({row['probability']:.3f}), {row['task']}" if row["task"] else "unknown"
            stdout.print(f"{row['image']}: {said}", soft_wrap=True)


def tasks(state: State, net: Model = None, form: Format = "table", as_json: AsJson = False) -> None:
    """List the tasks that it knows, and its revisions."""
    learner = _open(state, net)
    revisions = learner.revisions()
    if as_json:
        known = [task.model_dump() for task in learner.tasks]
        past = [
            {"revision": one.revision, "made": one.made, "why": one.why, "verdict": one.verdict} for one in revisions
        ]
        print(json.dumps({"revision": learner.revision, "tasks": known, "revisions": past}, ensure_ascii=False))
        return
    page = Page(form)
    rows = [
        [task.name, str(len(task.classes)), str(task.images), _percent(task.valid_accuracy), str(task.revision),
         "yes" if task.protected else "no"]
        for task in learner.tasks
    ]  # fmt: skip
    heads = [Column(name, right=name not in ("task", "protected")) for name in TASK_COLUMNS]
    page.tables([table(f"tasks of {state}", heads, rows)])
    page.gap()
    columns = [Column(name, right=False) for name in ("revision", "made", "by", "verdict")]
    marks = {learner.revision: " *"}
    history = [[f"{one.revision}{marks.get(one.revision, '')}", one.made, one.why, one.verdict] for one in revisions]
    page.tables([table("revisions (* in use)", columns, history)])


def check(
    state: State,
    tests: Tests = None,
    limits: LimitsFile = None,
    net: Model = None,
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Compare the revision in use with the one that it came from, on test images of old tasks."""
    use_threads(threads)
    _finish(_open(state, net).check(tests, limits), as_json)


def rollback(
    state: State,
    to: Annotated[str, typer.Argument(metavar="REVISION", help="Its number, see `perdure tasks STATE`.")],
    net: Model = None,
) -> None:
    """Use an earlier revision again, bit for bit."""
    learner = _open(state, net)
    learner.rollback(numbers("REVISION", to)[0])
    stdout.print(f"revision {learner.revision} is in use")


def forget(state: State, task: Annotated[str, typer.Argument(metavar="TASK")], net: Model = None) -> None:
    """Remove what is held of one task alone, and all earlier revisions; says what cannot be removed."""
    learner = _open(state, net)
    for line in learner.forget(task):
        stdout.print(f"cannot be removed: {line}", soft_wrap=True)
    stdout.print(f"{task} is forgotten; revision {learner.revision} is in use", soft_wrap=True)


def held(state: State, net: Model = None, form: Format = "table", as_json: AsJson = False) -> None:
    """List every tensor and file that is held: kind, bytes, whether it holds pixels or tells who was trained on."""
    found = _open(state, net).held()
    if as_json:
        print(json.dumps(found, ensure_ascii=False))
        return
    page = Page(form)
    columns = [Column(name, right=name == "bytes") for name in ("name", "kind", "bytes", "pixels", "tells membership")]
    for what in ("tensors", "files"):
        rows = [
            [one["name"], one["kind"], f"{one['bytes']:,}", "yes" if one["pixels"] else "no", one["membership"]]
            for one in found[what]
        ]
        page.tables([table(what, columns, rows)])
        page.gap()


def card(state: State, net: Model = None) -> None:
    """The model as a page of Markdown: tasks, checks, room left, what is held."""
    print(_open(state, net).card(), end="")


def export(
    state: State,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="FILE.onnx or FILE.pt2")],
    onnx: Annotated[bool, typer.Option("--onnx", help="As ONNX; the same as FILE.onnx.")] = False,
    torch_file: Annotated[
        bool, typer.Option("--torch", help="As torch.export writes it; the same as FILE.pt2.")
    ] = False,
    task: TaskName = None,
    net: Model = None,
    as_json: AsJson = False,
) -> None:
    """Write the classifier for other programs: pixels in, probabilities out, of one task or of all."""
    if onnx and torch_file:
        raise WrongValue("--onnx and --torch: choose one, or write two files")
    if onnx or torch_file:
        suffix = ".onnx" if onnx else ".pt2"
        file = file if file.suffix == suffix else file.with_name(file.name + suffix)
    about = _open(state, net).export(file, task)
    if as_json:
        print(json.dumps(about, ensure_ascii=False))
    else:
        stdout.print(f"{file}: {', '.join(about['tasks'])}, revision {about['revision']}", soft_wrap=True)


def serve(
    state: State,
    host: Annotated[
        str, typer.Option(metavar="NAME", help="Where to listen; this machine alone by default.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, metavar="N", help="0 takes any that is free.")] = 8000,
    net: Model = None,
    most: Annotated[int, typer.Option("--largest", min=1, metavar="BYTES", help="Largest image file.")] = 10 * 2**20,
    threads: Threads = 1,
) -> None:
    """Answer over HTTP: POST /predict with an image file. Uses the revision in use, also after it has changed."""
    use_threads(threads)
    from perdure.learner.serve import run_service

    run_service(_open(state, net), host=host, port=port, largest=most, say=note)


def _finish(report: "ReleaseReport", as_json: bool) -> None:
    if as_json:
        print(json.dumps(report.plain(), ensure_ascii=False))
    else:
        stdout.print(str(report), soft_wrap=True)
    if report.exit_code:
        raise typer.Exit(report.exit_code)


def _floats(name: str, text: str | None) -> list[float] | None:
    if text is None:
        return None
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise WrongValue(f"{name} {text}: write numbers with commas between, e.g. 0.485,0.456,0.406") from None


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"
