"""How much of each layer's input space is taken after each task, and how many more tasks fit."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import Tensor

from perdure.methods.method import Method
from perdure.ops.capacity import FAR, NEEDS_TWO, TRENDS, Forecast, first_full, forecast, taken_after
from perdure.ops.layers import layer_inputs, representations
from perdure.ops.subspace import extend
from perdure.probes.probe import Cost, Probe, ProbeResult, TaskModel, TrainedMethod
from perdure.schema import Count, Share


class Capacity(Probe):
    """By GPM's measure, for any method: the directions that hold a share ε of the energy of a layer's inputs, those of
    each task added to those of the tasks before it. A task is seen by the method as it was when it had learned it.

    ε stays the same for all tasks, unlike GPM's, which rises: what a later task adds are then new directions, and none
    that a stricter rule has found in the same images.
    """

    needs_snapshots = True

    def __init__(
        self,
        *,
        threshold: Share = 0.97,  # ε: share of a layer's input energy that taken directions hold, for every task
        images: Count = 125,  # training images of each task whose layer inputs are looked at, in one batch
        free: Share = 0.05,  # a task fits if at least this share of every layer stays free
    ) -> None:
        self.threshold, self.images, self.free = threshold, images, free

    def cost(self, trained: TrainedMethod) -> Cost:
        return Cost(forwards=trained.images("train", self.images))

    def measure(self, trained: TrainedMethod) -> ProbeResult:
        bases: dict[str, Tensor] = {}
        shown: dict[str, int] = {}
        taken: dict[str, list[int]] = {}
        own: list[dict[str, float]] = []
        for task in range(len(trained.tasks)):
            method = trained.having_learned(task)
            for name, inputs in self._layer_inputs(trained.model(task, "train", method=method)).items():
                bases[name] = extend(bases.get(name), inputs, self.threshold)
                shown[name] = inputs.shape[1]
                taken.setdefault(name, []).append(bases[name].shape[1])
            own.append(own_account(method))
        layers = {
            name: {
                "directions": len(bases[name]),
                "shown": shown[name],
                "taken": counts,
                "percent": [100 * count / len(bases[name]) for count in counts],
                "own": [account[name] for account in own] if all(name in account for account in own) else None,
            }
            for name, counts in taken.items()
        }
        return self._result(trained.task_names, layers)

    @torch.no_grad()
    def _layer_inputs(self, model: TaskModel) -> dict[str, Tensor]:
        """Inputs of every layer as columns: the images go through the network in one batch, then each layer takes
        patches of the first few."""
        (x, _), *_ = model.batches(self.images, size=self.images)
        backbone = model.method.net.backbone
        inputs = layer_inputs(backbone, lambda: model.forward(x))
        columns = representations(inputs, backbone.patch_images)
        return {
            name: found for name, found in columns.items() if found.ndim > 1
        }  # an embedding has rows, no directions

    def _result(self, tasks: list[str], layers: dict[str, dict[str, Any]]) -> ProbeResult:
        bottleneck = max(layers, key=lambda name: layers[name]["percent"][-1])
        headline = {"capacity taken": layers[bottleneck]["percent"][-1]}
        figures: dict[str, Any] = {"tasks": tasks, "layers": layers, "bottleneck": bottleneck}
        figures |= {"forecast": None, "text": [NEEDS_TWO]}
        if len(tasks) > 1:
            shares = {name: [percent / 100 for percent in layer["percent"]] for name, layer in layers.items()}
            figures["forecast"] = said = in_percent(forecast(shares, self.free), shares)
            figures["text"] = sentences(said, self.free)
            if said["tasks_left"] is not None:  # "more than a hundred" is no number to take means of
                headline["tasks left"] = float(said["tasks_left"])
        arrays = {
            "taken": torch.tensor([layer["taken"] for layer in layers.values()]),  # (layers, tasks)
            "directions": torch.tensor([layer["directions"] for layer in layers.values()]),
        }
        return ProbeResult(figures, headline, arrays)


def in_percent(found: Forecast, shares: Mapping[str, list[float]]) -> dict[str, Any]:
    """A forecast in plain numbers, and what it says of as many tasks ahead as there are behind."""
    steps = range(1, max(len(next(iter(shares.values()))), 3) + 1)
    trend, left = found.trend, found.left[found.trend]
    fullest, tasks_left = first_full(left)
    return {
        "model": trend,
        "rule": TRENDS[trend],
        "tasks_left": tasks_left,
        "ends_in": fullest,
        "by_model": {name: first_full(by_layer)[1] for name, by_layer in found.left.items()},
        "error": 100 * found.errors[trend] if found.errors else None,
        "errors": {name: 100 * error for name, error in found.errors.items()},
        "layers": {
            name: {
                "rate": 100 * rate,
                "tasks_left": left[name],
                "ahead": [100 * taken_after(shares[name], trend, step) for step in steps],
            }
            for name, rate in found.rates.items()
        },
        "checks": [asdict(replace(past, said=100 * past.said, was=100 * past.was)) for past in found.checks],
    }


def own_account(method: Method) -> dict[str, float]:
    """What a method itself has to say, if anything: layer → percent of its directions that are no longer free."""
    facts = method.facts()
    held = {name: 100 * taken / of for name, (taken, of) in facts.get("basis", {}).items()}
    return held or {name: 100 * (1 - free) for name, free in facts.get("free", {}).items()}


def sentences(said: Mapping[str, Any], free: float) -> list[str]:
    """The forecast in words, what it rests on, and what other rules would say."""

    def number(left: int | None) -> str:
        return f"more than {FAR}" if left is None else str(left)

    where = f" ({said['ends_in']} is full first)" if said["ends_in"] else ""
    others = [f"{number(left)} if {TRENDS[name]}" for name, left in said["by_model"].items() if name != said["model"]]
    trust = "unchecked: that takes three tasks or more"
    if said["error"] is not None:
        trust = (
            f"earlier forecasts by this rule were off by {said['error']:.1f} points on average; "
            f'saying "as it is" by {said["errors"]["unchanged"]:.1f}'
        )
    return [
        f"more tasks of this kind that fit, with {100 * free:g} % of every layer free: "
        f"{number(said['tasks_left'])}{where}, if {said['rule']}",
        trust,
        f"by other rules: {', '.join(others)}",
    ]
