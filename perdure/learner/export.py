"""A learner's classifier in a file for other programs, ONNX or torch.export's: pixels in, probabilities out."""

import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from perdure import fast
from perdure.errors import PerdureError, WrongValue, install_hint
from perdure.lab.store import atomic_write
from perdure.learner.learner import Learner
from perdure.nets.wrap import Wrapped

SUFFIXES = (".onnx", ".pt2")
CLOSE = 1e-5  # probabilities of the file may differ so much from the learner's


class TaskClassifier(nn.Module):
    """Pixels (n, channels, height, width) in [0, 1] to probabilities of one task (n, classes)."""

    mean: Tensor
    std: Tensor

    def __init__(self, learner: Learner, number: int) -> None:
        super().__init__()
        method, task = learner.method, learner.about.tasks[number]
        net = deepcopy(method.net)
        own = {**method.weights(number), **net.statistics_of(number)}
        current = dict(net.named_parameters()) | dict(net.named_buffers())
        with torch.no_grad():
            for name, value in own.items():
                if name not in current or current[name].shape != value.shape:
                    raise WrongValue(
                        f"{learner.about.method} changes the shape of {name} with each task; it cannot be exported"
                    )
                current[name].copy_(value)
        self.backbone: nn.Module = net.backbone
        if isinstance(net.backbone, Wrapped):
            self.backbone = net.backbone.model
            if net.backbone.head:
                parent, _, name = net.backbone.head.rpartition(".")
                setattr(self.backbone.get_submodule(parent), name, nn.Identity())
        self.head = net.heads[number]
        self.register_buffer("mean", torch.tensor(task.mean).view(1, -1, 1, 1))
        self.register_buffer("std", torch.tensor(task.std).view(1, -1, 1, 1))

    def forward(self, pixels: Tensor) -> Tensor:
        found: Any = self.backbone((pixels - self.mean) / self.std)
        hidden = found[0] if isinstance(found, tuple) else found
        probabilities: Tensor = self.head(hidden).softmax(1)
        return probabilities


class Classifiers(nn.Module):
    """One for each task, one output after another."""

    def __init__(self, models: list[TaskClassifier]) -> None:
        super().__init__()
        self.models = nn.ModuleList(models)

    def forward(self, pixels: Tensor) -> tuple[Tensor, ...]:
        return tuple(model(pixels) for model in self.models)


def export(learner: Learner, path: str | Path, task: str | None = None) -> dict[str, Any]:
    """Write FILE.onnx or FILE.pt2: of one task, or of all, with an output for each. Returns what it says of itself.

    Pixels are float32 in [0, 1], already scaled to the learner's size; normalization is inside.
    """
    path = Path(path)
    if path.suffix not in SUFFIXES:
        raise WrongValue(f"{path}: name a file that ends in {' or '.join(SUFFIXES)}")
    if not learner.tasks:
        raise WrongValue("nothing has been learned yet; there is nothing to export")
    names = [task] if task is not None else [known.name for known in learner.tasks]
    numbers = [learner._number(name) for name in names]
    model = Classifiers([TaskClassifier(learner, number) for number in numbers]).cpu().eval()
    pixels = torch.rand(2, *learner.shape, generator=torch.Generator().manual_seed(0))
    _check(model, learner, numbers, pixels)
    about = {
        "input": list(learner.shape),
        "outputs": [f"probabilities_{number}" for number in range(len(names))],
        "tasks": names,
        "classes": {name: learner.about.tasks[number].classes for name, number in zip(names, numbers, strict=True)},
        "revision": learner.revision,
    }
    with _quietly(), fast.without("all"), atomic_write(path) as part:
        try:
            program = torch.export.export(model, (pixels,), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))
            if path.suffix == ".pt2":
                torch.export.save(program, part, extra_files={"about.json": json.dumps(about)})
            else:
                _onnx(program, part, about)
        except (RuntimeError, TypeError, ValueError, AttributeError) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
            raise PerdureError(f"the network cannot be exported: {reason}") from None
    return about


def _onnx(program: Any, part: Path, about: dict[str, Any]) -> None:
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError:
        raise WrongValue(f"ONNX needs packages that are not installed: {install_hint('onnx')}") from None
    made = torch.onnx.export(program, input_names=["pixels"], output_names=about["outputs"], dynamo=True, verbose=False)
    assert made is not None
    made.model.metadata_props["perdure"] = json.dumps(about)
    made.save(part)


def _check(model: Classifiers, learner: Learner, numbers: list[int], pixels: Tensor) -> None:
    with torch.no_grad():
        for number, found in zip(numbers, model(pixels), strict=True):
            if not torch.allclose(found, learner._probabilities(pixels, number, len(pixels)), atol=CLOSE):
                raise PerdureError(
                    "the network's answer is not that of its head on what its last layer reads; cannot export"
                )


@contextmanager
def _quietly() -> Iterator[None]:
    """Exporters warn of their own insides."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
