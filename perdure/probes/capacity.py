"""How much of each layer's input space is taken after each task, and how many more tasks fit."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from perdure.methods.method import Method
from perdure.ops.capacity import FAR, MODELS, NEEDS_TWO, Forecast, first_full, forecast, taken_after
from perdure.ops.subspace import extend, layer_inputs, representations
from perdure.probes.probe import Measured, Probe, Sight, Subject, Work
from perdure.schema import Count, Share


class Capacity(Probe):
    """By GPM's measure, for any method: the directions that hold a share ε of the energy of a layer's inputs, those of
    each task added to those of the tasks before it. A task is seen by the method as it was when it had learned it.

    ε stays the same for all tasks, unlike GPM's, which rises: what a later task adds are then new directions, and none
    that a stricter rule has found in the same images.
    """

    needs_stages = True

    def __init__(
        self,
        *,
        threshold: Share = 0.97,  # ε: share of a layer's input energy that taken directions hold, for every task
        images: Count = 125,  # training images of each task whose layer inputs are looked at, in one batch
        free: Share = 0.05,  # a task fits if at least this share of every layer stays free
    ) -> None:
        self.threshold = threshold
        self.images = images
        self.free = free

    def work(self, subject: Subject) -> Work:
        return Work(looks=subject.images("train", self.images))

    def measure(self, subject: Subject) -> Measured:
        bases: dict[str, Tensor] = {}
        shown: dict[str, int] = {}
        taken: dict[str, list[int]] = {}
        own: list[dict[str, float]] = []
        for task in range(len(subject.tasks)):
            method = subject.having_learned(task)
            for name, found in self._representations(subject.sight(task, "train", method=method)).items():
                bases[name] = extend(bases.get(name), found, self.threshold)
                shown[name] = found.shape[1]
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
        return self._summed_up(subject, layers)

    @torch.no_grad()
    def _representations(self, sight: Sight) -> dict[str, Tensor]:
        """Inputs of every layer as columns: the images go through the network in one batch, then each layer takes
        patches of the first few."""
        (x, _), *_ = sight.batches(self.images, size=self.images)
        backbone = sight.method.net.backbone
        inputs = layer_inputs(backbone, lambda: sight.forward(x))
        return representations(inputs, backbone.layers(), backbone.patch_images)

    def _summed_up(self, subject: Subject, layers: dict[str, dict[str, Any]]) -> Measured:
        bottleneck = max(layers, key=lambda name: layers[name]["percent"][-1])
        headline = {"capacity taken": layers[bottleneck]["percent"][-1]}
        figures: dict[str, Any] = {
            "tasks": [task.name for task in subject.tasks],
            "layers": layers,
            "bottleneck": bottleneck,
            "forecast": None,
            "text": [NEEDS_TWO],
        }
        if len(subject.tasks) > 1:
            shares = {name: [percent / 100 for percent in layer["percent"]] for name, layer in layers.items()}
            figures["forecast"] = told = self._told(forecast(shares, self.free), shares)
            figures["text"] = sentences(told, self.free)
            if told["tasks_left"] is not None:  # "more than a hundred" is no number to take means of
                headline["tasks left"] = float(told["tasks_left"])
        arrays = {
            "taken": torch.tensor([layer["taken"] for layer in layers.values()]),  # (layers, tasks)
            "directions": torch.tensor([layer["directions"] for layer in layers.values()]),
        }
        return Measured(figures, headline, arrays)

    def _told(self, found: Forecast, shares: Mapping[str, list[float]]) -> dict[str, Any]:
        """A forecast in plain numbers; shares in percent."""
        tasks = len(next(iter(shares.values())))
        steps = range(1, max(tasks, 3) + 1)  # as far ahead as there is behind
        fullest, left = first_full(found.left[found.model])
        return {
            "model": found.model,
            "rule": MODELS[found.model],
            "tasks_left": left,
            "ends_in": fullest,
            "by_model": {model: first_full(by_layer)[1] for model, by_layer in found.left.items()},
            "error": 100 * found.errors[found.model] if found.errors else None,
            "errors": {name: 100 * error for name, error in found.errors.items()},
            "layers": {
                name: {
                    "rate": 100 * pace,
                    "tasks_left": found.left[found.model][name],
                    "ahead": [100 * taken_after(shares[name], found.model, step) for step in steps],
                }
                for name, pace in found.rates.items()
            },
            "checks": [
                {"layer": check.layer, "after": check.after, "at": check.at, "said": said, "was": was}
                for check in found.checks
                for said, was in [(100 * check.said, 100 * check.was)]
            ],
        }


def own_account(method: Method) -> dict[str, float]:
    """What a method itself has to say, if anything: layer → percent of its directions that are no longer free."""
    facts = method.facts()
    held = {name: 100 * taken / of for name, (taken, of) in facts.get("basis", {}).items()}
    return held or {name: 100 * (1 - free) for name, free in facts.get("free", {}).items()}


def sentences(told: Mapping[str, Any], free: float) -> list[str]:
    """The forecast in words, what it rests on, and what other rules would say."""
    where = f" ({told['ends_in']} is full first)" if told["ends_in"] else ""
    others = [
        f"{number(left)} if {MODELS[model]}" for model, left in told["by_model"].items() if model != told["model"]
    ]
    if told["error"] is None:
        trust = "unchecked: that takes three tasks or more"
    else:
        trust = (
            f"earlier forecasts by this rule were off by {told['error']:.1f} points on average; "
            f'saying "as it is" by {told["errors"]["unchanged"]:.1f}'
        )
    return [
        f"more tasks of this kind that fit, with {100 * free:g} % of every layer free: "
        f"{number(told['tasks_left'])}{where}, if {told['rule']}",
        trust,
        f"by other rules: {', '.join(others)}",
    ]


def number(left: int | None) -> str:
    return f"more than {FAR}" if left is None else str(left)
