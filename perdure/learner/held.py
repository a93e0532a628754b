"""What a state holds, tensor by tensor and file by file, and what that may tell of the images; and the card."""

from dataclasses import asdict, dataclass
from typing import Any

from safetensors import safe_open

from perdure.learner.infer import PREFIX
from perdure.learner.learner import Learner
from perdure.learner.state import MODEL

KINDS = {
    "weights": "the network",
    "head": "one task's last layer",
    "statistics": "mean and variance of one task's batch norms",
    "activation statistics": "mean and variance of layer inputs, to tell tasks apart",
    "basis": "directions of layer inputs of training images",
    "memory": "other tensors of the method",
}


@dataclass(frozen=True)
class Held:
    """A tensor of the revision in use, or a file."""

    name: str
    kind: str
    bytes: int
    pixels: bool  # whether images, or parts of them, are in it
    membership: str  # whether it tells that an image was among those trained on


def held(learner: Learner) -> dict[str, Any]:
    """Every tensor of the revision in use, and every file of the state, with bytes."""
    with safe_open(learner.state.folder(learner.revision) / MODEL, "pt") as file:
        tensors = [_tensor(learner, name, file.get_tensor(name)) for name in sorted(file.keys())]
    files = [
        Held(name, _file_kind(name), size, False, "as its tensors") for name, size in learner.state.files().items()
    ]
    return {
        "tensors": [asdict(one) for one in tensors],
        "files": [asdict(one) for one in files],
        "bytes": sum(one.bytes for one in files),
        "pixels": any(one.pixels for one in tensors),
        "membership": {task.name: task.membership for task in learner.tasks},
    }


def _tensor(learner: Learner, name: str, tensor: Any) -> Held:
    kind = _kind(name)
    layer = name.removeprefix("memory.").replace("|", ".")
    told = [task.membership[layer] for task in learner.tasks if layer in task.membership]
    if kind == "basis":
        says = f"AUC {max(told):.3f} (0.5 is chance)" if told else "may, not measured"
    else:
        says = "may, not measured" if kind in ("weights", "head", "memory") else "not of single images"
    images = kind not in ("weights", "head") and tuple(tensor.shape[-3:]) == learner.shape  # of a method of the user's
    return Held(name, kind, tensor.numel() * tensor.element_size(), images, says)


def _kind(name: str) -> str:
    if name.startswith(f"{PREFIX}/"):
        return "activation statistics"
    if name.startswith("net.heads."):
        return "head"
    if name.startswith("net.statistics."):
        return "statistics"
    if name.startswith("net."):
        return "weights"
    return "basis" if name.startswith("memory.") else "memory"


def _file_kind(name: str) -> str:
    last = name.rsplit("/", 1)[-1]
    if last == MODEL:
        return "tensors of a revision"
    return {"state.json": "facts of a revision", "head.json": "the revision in use"}.get(last, "lock")


def card(learner: Learner) -> str:
    """The model as a page of Markdown: what it knows, what was checked, what it holds."""
    about, found, room = learner.about, held(learner), learner.forecast()
    lines = [
        f"# {learner.state.path.name}",
        "",
        f"Revision {about.revision} of {about.made}, by {about.why}. Method {about.method}, network "
        f"{about.network.name or 'given as a module'}, images {' × '.join(map(str, about.input))}.",
        "",
        f"**{about.verdict.capitalize()}** against the revision before it.",
        "",
        "| task | classes | images | accuracy in validation | protected |",
        "|---|---|---:|---:|---|",
    ]
    for task in learner.tasks:
        valid = "–" if task.valid_accuracy is None else f"{task.valid_accuracy:.1f} %"
        guarded = "yes" if task.protected else "**no**"
        lines.append(f"| {_cell(task.name)} | {_cell(', '.join(task.classes))} | {task.images} | {valid} | {guarded} |")
    if about.checks:
        lines += [
            "",
            "| old task | figure | before | after | lost | interval | allowed | images |",
            "|---|---|" + "---:|" * 6,
        ]
        for check in about.checks:
            interval = f"{check['low']:.1f} … {check['high']:.1f}"
            lines.append(
                f"| {_cell(check['task'])} | {check['what']} | {check['before']:.1f} | {check['after']:.1f} | "
                f"{check['loss']:.1f} | {interval} | {check['limit']:g} | {check['images']} |"
            )
    lines += ["", "## Which task is an image of?", ""]
    if about.inference is None:
        lines.append("Not measured: that needs test images of two tasks or more when a task is learned.")
    else:
        told = about.inference
        lines.append(
            f"Told right for {told['accuracy']:.1f} % of {told['images']} single test images of {len(told['tasks'])} "
            f"tasks in mixed order (chance: {told['chance']:.1f} %)."
        )
    if room["layers"]:
        lines += ["", "## Room left", "", "| layer | directions held | of |", "|---|---:|---:|"]
        lines += [f"| {name} | {layer['held']} | {layer['of']} |" for name, layer in room["layers"].items()]
        if room["tasks_left"] is not None:
            lines += [
                "",
                f"By the trend so far, about {room['tasks_left']} more tasks fit before {room['first_full']} is full.",
            ]
    by_kind: dict[str, int] = {}
    for one in found["tensors"]:
        by_kind[one["kind"]] = by_kind.get(one["kind"], 0) + one["bytes"]
    lines += ["", "## What is held", "", "| kind | bytes | what it is |", "|---|---:|---|"]
    lines += [f"| {kind} | {size:,} | {KINDS.get(kind, '')} |" for kind, size in by_kind.items()]
    worst = max((value for task in learner.tasks for value in task.membership.values()), default=None)
    lines += ["", "**Images are in these files.**" if found["pixels"] else "No image is in these files."]
    if worst is not None:
        lines.append(
            f"Bases are made from training images and tell which: what those of {about.method} leave of an image's "
            f"layer inputs told members from others with an AUC of up to {worst:.3f} (0.5 is chance). Treat the state "
            "as confidential as its images."
        )
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
