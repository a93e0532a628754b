"""What a learner is made of: network, method, plan; and the head of a trained model as its first task."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from perdure import registry
from perdure.data.images import list_folders
from perdure.errors import WrongValue, expanded
from perdure.learner import infer, source
from perdure.learner.state import SavedNetwork
from perdure.memory.gradient_memory import GradientMemory
from perdure.methods.method import Method
from perdure.nets.network import Backbone, Network, first_weights
from perdure.nets.wrap import wrap
from perdure.seeding import chance
from perdure.train.plan import Plan
from perdure.train.state import FitState, changing
from perdure.types import Lesson, Part, Split, cut

PLAN = {"rate": 0.01, "epochs": 20, "batch": 32, "schedule": "cosine", "momentum": 0.9}


def check_shape(given: Sequence[int]) -> source.Shape:
    if (
        len(given) != 3
        or not all(isinstance(one, int) and 1 <= one <= 2**12 for one in given)
        or given[0] not in (1, 3)
    ):
        raise WrongValue(
            f"input={tuple(given)}: give (channels, height, width), with 1 or 3 channels, e.g. (3, 224, 224)"
        )
    return given[0], given[1], given[2]


def build_network(
    model: str | nn.Module,
    shape: source.Shape,
    seed: int,
    head: str | None,
    keep_head: bool,
    free: Sequence[str],
    fresh: bool = False,
) -> Network:
    if isinstance(model, str):
        with first_weights(seed):
            made = registry.networks.load(registry.networks.name(model))(shape)
        return build_network(made, shape, seed, head, keep_head, free, fresh=not keep_head)
    if isinstance(model, Network):
        raise WrongValue("give the module itself, or a Backbone, not a Network: heads are the learner's")
    if isinstance(model, Backbone):
        if keep_head:
            raise WrongValue("classes adopts the head of a model that was trained, and this network has none")
        return Network(model, "task")
    return wrap(model, shape, head=head, keep_head=keep_head, free=free, fresh=fresh)


def build_method(name: str, net: Network, values: Mapping[str, Any]) -> Method:
    kind = registry.methods.load(name)
    method: Method = kind(net, **values)
    if "stored-data" in method.needs():
        raise WrongValue(f"{name} keeps training images; choose a method that keeps none, e.g. gpm, dfgp or rcl")
    return method


def build_plan(given: Plan | Mapping[str, Any] | None, default: Mapping[str, Any] = PLAN) -> Plan:
    if isinstance(given, Plan):
        return given
    return Plan(**{**default, **(given or {})})


def check_scale(name: str, given: Sequence[float] | None, shape: source.Shape) -> list[float] | None:
    if given is None:
        return None
    found = [float(one) for one in given]
    if len(found) not in (1, shape[0]) or (name == "std" and min(found) <= 0):
        raise WrongValue(f"{name}={tuple(given)}: give one number, or one for each of {shape[0]} channels, std above 0")
    return found


def structure_of(net: Network) -> dict[str, list[int]]:
    return {name: list(tensor.shape) for name, tensor in net.backbone.state_dict().items()}


def check_structure(path: str | Path, net: Network, saved: SavedNetwork) -> None:
    found = structure_of(net)
    wrong = [name for name in {**saved.structure, **found} if found.get(name) != saved.structure.get(name)]
    if wrong:
        rows = [f"{name} {found.get(name, 'missing')} instead of {saved.structure.get(name, 'none')}" for name in wrong]
        more = f" and {len(rows) - 3} more" if len(rows) > 3 else ""
        raise WrongValue(f"{path}: the network is another than it was made with: {'; '.join(rows[:3])}{more}")


def adopt_head(
    method: Method,
    classes: list[str],
    reference: Any,
    shape: source.Shape,
    scale: tuple[list[float], list[float]],
    seed: int,
) -> tuple[dict[str, Any], dict[int, infer.Activations]]:
    """The head that the model brings becomes the first task."""
    if len(set(classes)) != len(classes) or len(classes) < 2:
        raise WrongValue("classes: give the names of the old head's classes in its order, each once")
    net = method.net
    net.add_head(len(classes))
    net.keep_statistics(0)
    about: dict[str, Any] = {
        "name": "start", "classes": classes, "mean": scale[0], "std": scale[1], "images": 0, "revision": 1,
        "protected": False,
    }  # fmt: skip
    if reference is None:
        return about, {}
    x = _reference(reference, shape)
    split = Split(x, torch.zeros(len(x), dtype=torch.int64), tuple(scale[0]), tuple(scale[1]))
    with torch.no_grad():
        method.eval()
        answers = [method.forward(split.take(rows)[0], 0).logits.argmax(1) for rows in cut(len(x), 64)]
    split = Split(x, torch.cat(answers), tuple(scale[0]), tuple(scale[1]))  # labels are what the model says
    with chance(seed, "end", 0):
        method.end(Lesson(0, (Part(0, len(classes), split, split),)))
    activations = {0: infer.activation_statistics(method, 0, split)}
    far = infer.distances(method, split, 0, activations[0])
    about |= {
        "protected": bool(method.protects),
        "images": len(x),
        "basis": {name: list(size) for name, size in basis_sizes(method).items()},
        "threshold": infer.threshold(far),
    }
    return about, activations


def _reference(data: Any, shape: source.Shape) -> Tensor:
    if isinstance(data, str | Path) and list_folders(expanded(data)):
        return source.read_labeled("reference images", data, shape, training=False)[0]
    if isinstance(data, tuple) and len(data) == 2:
        data = data[0]
    return source.read_unlabeled(data, shape)


def basis_sizes(method: Method) -> dict[str, tuple[int, int]]:
    memory = getattr(method, "memory", None)
    return memory.sizes() if isinstance(memory, GradientMemory) else {}


def resumed(method: Method, number: int, plan: Plan) -> FitState:
    """To go on with a task that is known: with its own running statistics."""
    with torch.no_grad():
        live = dict(method.net.backbone.named_buffers())
        for name, kept in method.net.statistics_of(number).items():
            live[name.removeprefix("backbone.")].copy_(kept)
    best = {name: tensor.detach().clone() for name, tensor in changing(method).items()} if plan.keep == "best" else {}
    return FitState(number, plan.schedule_for_lesson(), best)
