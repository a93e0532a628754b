"""GPM's protection for anyone's own training loop, with any optimizer."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from perdure.errors import WrongValue
from perdure.memory.gradient_memory import GradientMemory
from perdure.nets.coverage import Coverage, examine
from perdure.ops.gradients import project
from perdure.ops.layers import layer_inputs, representations
from perdure.types import Gradient


class Projector:
    """Keeps a module's answers to old tasks while your own loop trains it on a new one.

        projector = Projector(model, heads=("fc",))
        for task, (loader, …) in enumerate(tasks):
            for x, y in loader:
                optimizer.zero_grad()
                loss(model(x), y).backward()
                projector.step(optimizer)     # any optimizer; or, for plain SGD, project_() and optimizer.step()
            projector.observe(loader, task)   # after each task

    In a trainer that steps by itself, `projector.attach(optimizer)` once makes each step of this optimizer such a step.

    - `heads` are beginnings of the names of what is each task's own, e.g. its output layer.
    - `free` are beginnings of the names of what may move although nothing protects it.
    - `threshold` is the share of each layer's input energy that is protected, `step` what it gains with each task, and
      `samples` the images that are looked at.

    What no basis can cover (biases, norms, tokens) is fixed after the first task. Running statistics are stored with
    each task: `with projector.statistics(task): …` uses them. Training in between must not use mixed batches of tasks.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        heads: Sequence[str] = (),
        free: Sequence[str] = (),
        threshold: float = 0.97,
        step: float = 0.003,
        samples: int = 125,
    ) -> None:
        for name, value, good in (
            ("threshold", threshold, 0 < threshold <= 1),
            ("step", step, 0 <= step <= 1),
            ("samples", samples, samples >= 2),
        ):
            if not good:
                raise WrongValue(f"{name}={value}: thresholds and steps are shares up to 1, samples two or more")
        names = [name for name, _ in model.named_parameters()]
        for given in (*heads, *free):
            if not any(name.startswith(given) for name in names):
                raise WrongValue(f"no parameter of the model is called {given}…; there are {', '.join(names[:4])}, …")
        self.model, self.heads, self.free = model, tuple(heads), tuple(free)
        self.threshold, self.gain, self.samples = threshold, step, samples
        self.memory, self.observed = GradientMemory(), 0
        self.coverage: Coverage | None = None
        self.buffers: dict[Any, dict[str, Tensor]] = {}

    @torch.no_grad()
    def observe(self, batches: Iterable[Any], task: Any = None) -> Coverage:
        """After a task: remember the directions that its inputs use. Batches are tensors, or begin with one; as many
        are looked at as make up the samples."""
        x = self._gathered(batches)
        if self.coverage is None:
            self.coverage = examine(self.model, x[:2], self.free, self.heads)
        modes = {part: part.training for part in self.model.modules()}
        self.model.eval()
        try:
            inputs = layer_inputs(self.model, lambda: self.model(x))
        finally:
            for part, training in modes.items():
                part.training = training
        layers = self.coverage.layers
        found = representations({name: received for name, received in inputs.items() if name in layers}, {})
        self.memory.begin(found)
        self.memory.extend(found, min(self.threshold + self.gain * self.observed, 1.0))
        known = dict(self.model.named_buffers())
        self.buffers[self.observed if task is None else task] = {
            name: known[name].clone() for name in self.coverage.per_task
        }
        self.observed += 1
        return self.coverage

    def project_(self) -> None:
        """Between `backward` and the step of an optimizer that adds gradients alone (SGD, also with momentum that is
        new in each task): what is not allowed goes out of every `.grad`."""
        if not self.observed:
            return
        parameters = dict(self.model.named_parameters())
        gradient = {name: found.grad for name, found in parameters.items() if found.grad is not None}
        kept = self.allowed(gradient)
        for name in gradient:
            parameters[name].grad = kept.get(name)

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """A step of any optimizer, as far as it is allowed: Adam and weight decay move weights where no gradient
        points, so it is the step itself that is projected."""
        detach = self.attach(optimizer)
        try:
            optimizer.step()
        finally:
            detach()

    def attach(self, optimizer: torch.optim.Optimizer) -> Callable[[], None]:
        """From now on every step of this optimizer goes as far as it is allowed, whoever calls it: your loop,
        Lightning, Hugging Face's Trainer. Returned is what ends it."""
        before: dict[str, Tensor] = {}

        def remember(*_: Any) -> None:
            moving = self.model.named_parameters() if self.observed else ()
            before.update({name: found.detach().clone() for name, found in moving if found.requires_grad})

        @torch.no_grad()
        def restrict(*_: Any) -> None:
            moved = {name: found for name, found in self.model.named_parameters() if name in before}
            kept = self.allowed({name: found - before[name] for name, found in moved.items()}) if moved else {}
            for name, found in moved.items():
                found.copy_(before[name] + kept[name] if name in kept else before[name])
            before.clear()

        hooks = optimizer.register_step_pre_hook(remember), optimizer.register_step_post_hook(restrict)

        def detach() -> None:
            for hook in hooks:
                hook.remove()

        return detach

    def allowed(self, update: Mapping[str, Tensor]) -> Gradient:
        """What of a gradient or a step, name → tensor, changes no old answer."""
        assert self.coverage is not None
        names = {name: layer.parameter for name, layer in self.coverage.layers.items()}
        fixed = {part.name for part in self.coverage.of("fixed")}
        kept = {name: tensor for name, tensor in update.items() if name not in fixed}
        for found in (self.memory.projections(), self.memory.row_projections()):
            kept = project(kept, {names[layer]: projection for layer, projection in found.items()})
        return kept

    @contextmanager
    def statistics(self, task: Any) -> Iterator[None]:
        """Inside, the model has the running statistics that it had when this task was observed."""
        if task not in self.buffers:
            raise WrongValue(f"task {task!r} was not observed; these were: {', '.join(map(repr, self.buffers))}")
        live = dict(self.model.named_buffers())
        before = {name: live[name].clone() for name in self.buffers[task]}
        try:
            for name, kept in self.buffers[task].items():
                live[name].copy_(kept)
            yield
        finally:
            for name, value in before.items():
                live[name].copy_(value)

    def sizes(self) -> dict[str, tuple[int, int]]:
        """Layer → (directions protected, directions there are)."""
        return self.memory.sizes()

    def state_dict(self) -> dict[str, Any]:
        """All that is remembered, for `torch.save`."""
        return {"memory": dict(self.memory.items()), "buffers": self.buffers, "observed": self.observed}

    def load_state_dict(self, state: Mapping[str, Any], batch: Any) -> None:
        """Go on from there; one batch is needed to see how the model uses its parameters."""
        self.coverage = examine(self.model, _images(batch)[:2], self.free, self.heads)
        for layer, basis in state["memory"].items():
            if layer not in self.coverage.layers:
                raise WrongValue(f"the model has no layer {layer} to protect; load what belongs to this model")
            self.memory[layer] = basis
        self.buffers, self.observed = dict(state["buffers"]), int(state["observed"])

    def _gathered(self, batches: Iterable[Any]) -> Tensor:
        if isinstance(batches, Tensor):
            batches = [batches]
        parts, count = list[Tensor](), 0
        for batch in batches:
            parts.append(_images(batch))
            count += len(parts[-1])
            if count >= self.samples:
                break
        if count < 2:
            raise WrongValue("nothing to observe: give a loader, or batches of two images or more")
        like = next(self.model.parameters())
        return torch.cat(parts)[: self.samples].to(like.device)


def _images(batch: Any) -> Tensor:
    found = batch
    while isinstance(found, list | tuple) and found:
        found = found[0]
    if isinstance(found, Mapping):
        found = next((value for value in found.values() if isinstance(value, Tensor)), None)
    if not isinstance(found, Tensor):
        raise WrongValue(f"batches must be tensors, or begin with one, not {type(batch).__name__}")
    return found
