"""Warnings where a method is used outside what it assumes, each with the remedy."""

from collections.abc import Sequence
from typing import get_args

from torch import nn

from perdure import registry
from perdure.errors import UnknownName
from perdure.lab.spec import RunSpec
from perdure.methods.method import Method, Need

SMALL_BATCH = 16


def warnings_for(spec: RunSpec, method: Method, without: Sequence[str] = ()) -> list[str]:
    """What speaks against this run; `without` names what will be missing where the model is used."""
    needs: tuple[str, ...] = get_args(Need)
    for missing in without:
        if missing not in needs:
            raise UnknownName("constraint", missing, needs)
    found = [_remedies(spec.method)[need] for need in without if need in method.needs()]
    if spec.plan.batch < SMALL_BATCH and _batch_statistics(method.net):
        found.append(
            f"{spec.network} normalizes with the statistics of the batch, and {spec.plan.batch} images have poor ones: "
            f"use --plan batch={SMALL_BATCH} or more, or --net mlp"
        )
    return found


def _remedies(name: str) -> dict[str, str]:
    free = ", ".join(
        other
        for other in registry.methods
        if "stored-data" not in registry.methods.load(other).may_need and other != "finetune"
    )
    return {
        "stored-data": f"{name} keeps training images of old tasks; where that is not allowed, take one of {free}",
        "task-identity": (
            f"{name} picks the head by the task's number, in training and in use; where nobody tells the task of an "
            "image, its figures do not apply: decide the task first, or give all tasks one head and measure anew"
        ),
    }


def _batch_statistics(net: nn.Module) -> bool:
    return any(
        isinstance(part, nn.BatchNorm1d | nn.BatchNorm2d) and not part.track_running_stats for part in net.modules()
    )
