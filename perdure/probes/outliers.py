"""What outliers do to a continual learner: the argument of the paper's Sec. 3 (Eqs. 2–4, Fig. 2a), in numbers.

Every outlier is paired with the image as it should be, in a batch that is otherwise the same: batch norm may couple the
images of a batch, so nothing else may differ between two that are compared.

The paper puts all classes so far under one softmax. Methods here have one head for each task, and past heads take no
part in later tasks: the gradient on past classes is what it would be if they did.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import StatisticsError, correlation, fmean
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from perdure.errors import WrongValue
from perdure.methods.method import Method
from perdure.ops.attacks import noise
from perdure.ops.contamination import outlier_rows
from perdure.ops.gradients import grad, norm
from perdure.ops.metrics import wilson
from perdure.ops.outliers import excess_loss, past_gradient, weight_span
from perdure.probes.probe import BATCH, Cost, Probe, ProbeResult, TaskModel, TrainedMethod
from perdure.probes.robustness import ball
from perdure.schema import Count, Positive
from perdure.seeding import generator
from perdure.types import Gradient, Split, Weights, cut

IMAGES, ALL = "images", "all layers"
OF_IMAGES = {  # what the paper says of an outlier beside its original: which figure, does it rise, and in words
    "loss": (True, "Eq. 2: the outlier has the higher loss"),
    "past_logit": (True, "Sec. 3.2: r_p rises (mean logit of past classes)"),
    "current_logit": (False, "Sec. 3.2: r_c falls (mean logit of the task's classes)"),
    "right_logit": (False, "Sec. 3.2: r_c falls (logit of the right class)"),
    "past_gradient": (True, "Eq. 3: the gradient on past classes' logits grows"),
}
OF_BATCHES = "Eq. 4: the gradient by the weights grows"
OF_LESSONS = "Fig. 2a: the lesson raised the loss of earlier tasks"


@dataclass(frozen=True)
class PairedImages:
    """The training images of a task that are looked at."""

    clean: Split  # as they should be
    odd: Split | None  # with the run's own outliers; None: they are made on the spot
    rows: Tensor
    outliers: Tensor  # (rows,) which of them are

    def pieces(self) -> list[slice]:
        return cut(len(self.rows), BATCH)


BatchFigures = dict[str, Any]
"""What is measured on a batch: tensors (n,), one number for each image, and the norms of gradients by layer."""


@dataclass(frozen=True)
class BatchPair:
    """A batch as it should be, and with the outliers in their places."""

    outliers: Tensor  # (n,) which images are
    clean: BatchFigures
    odd: BatchFigures
    predicted: Tensor  # (n,) excess loss to first order


class Outliers(Probe):
    """Of a run on a contaminated stream, its own outliers beside the images that they replaced. Of any other run,
    outliers that are made on the spot, one of every image."""

    needs_snapshots = True

    def __init__(
        self,
        *,
        kind: Literal["adversarial", "noise", "foreign"] = "adversarial",  # FGSM, random signs, another task's image
        strength: Positive = 8 / 255,  # by which adversarial and noisy pixels of [0, 1] move
        images: Count = 128,  # training images of each task
    ) -> None:
        self.kind = kind
        self.ball = ball("linf", strength)
        self.images = images

    def cost(self, trained: TrainedMethod) -> Cost:
        """Both batches forward and back, and through earlier heads; earlier tasks again after every lesson."""
        sizes = [min(len(task.train), self.images) for task in trained.tasks]
        lessons = min(len(trained.history()), len(sizes))
        by_earlier_heads = sum(2 * task * size for task, size in enumerate(sizes))
        again = sum(sum(sizes[:lesson]) for lesson in range(lessons))
        return Cost(forwards=by_earlier_heads + again, gradients=2 * sum(sizes))

    def measure(self, trained: TrainedMethod) -> ProbeResult:
        snapshots = trained.history()
        images = self._paired(trained)
        every: list[BatchPair] = []
        tasks: list[dict[str, Any]] = []
        losses: list[float] = []  # of the tasks so far, as they should be, by the snapshot before
        before: Weights = {}
        for task, name in enumerate(trained.task_names):
            method = trained.having_learned(task)
            pairs = list(self._pairs(trained, task, method, images))
            lesson: dict[str, Any] = {"span": None, "relative_span": None, "past_loss_rise": None}
            weights = backbone(method.weights())
            if 0 < task < len(snapshots):  # tasks of one lesson share a snapshot: nothing came between them
                now = [mean_loss(trained, old, method, images[old]) for old in range(task)]
                span, relative = weight_span(weights, before)
                rise = fmean(new - old for new, old in zip(now, losses, strict=True))
                lesson = {"span": span, "relative_span": relative, "past_loss_rise": rise}
                losses = now
            tasks.append({"task": name, **summary(pairs), **lesson})
            losses.append(float(torch.cat([pair.clean["loss"] for pair in pairs]).mean()))
            before = weights
            every += pairs
        return result(self.kind if images[0].odd is None else "those of the run", tasks, every)

    # ── the images ──────────────────────────────────────────────────────────────────────────────────────────

    def _paired(self, trained: TrainedMethod) -> list[PairedImages]:
        parts = [task.train for task in trained.tasks]
        clean = [task.train.to(part.y.device) for task, part in zip(trained.clean, parts, strict=False)]
        changed = [outlier_rows(one, other) for one, other in zip(clean, parts, strict=False)]
        if any(len(rows) for rows in changed):
            return [self._chosen(one, other, rows) for one, other, rows in zip(clean, parts, changed, strict=True)]
        if self.kind == "foreign" and len(parts) < 2:
            raise WrongValue("foreign outliers are images of another task, and there is one task; use another kind")
        return [self._chosen(part, None, torch.arange(len(part), device=part.y.device)) for part in parts]

    def _chosen(self, clean: Split, odd: Split | None, changed: Tensor) -> PairedImages:
        """Outliers before others, but mixed among them in the order in which all probes take images."""
        (order,) = clean.pieces(len(clean))
        outlier = torch.zeros(len(clean), dtype=torch.bool, device=order.device)
        outlier[changed] = True
        first = torch.cat([outlier[order].nonzero()[:, 0], (~outlier[order]).nonzero()[:, 0]])[: self.images]
        rows = order[first.sort().values]
        return PairedImages(clean, odd, rows, outlier[rows])

    def _pairs(
        self, trained: TrainedMethod, task: int, method: Method, images: Sequence[PairedImages]
    ) -> Iterator[BatchPair]:
        own = images[task]
        models = [TaskModel(method, head, own.clean, progress=trained.progress) for head in range(task + 1)]
        model, rng = models[task], generator(0, "outliers", task)
        for piece in own.pieces():
            rows = own.rows[piece]
            x, y = model.pixels(own.clean, rows), own.clean.y[rows]
            clean, gradient = batch_figures(models, x, y, y)
            odd_y = y
            if own.odd is not None:
                odd_x, odd_y = model.pixels(own.odd, rows), own.odd.y[rows]
            elif self.kind == "foreign":
                odd_x = model.pixels(*foreign_images(images, task, piece))
            elif self.kind == "noise":
                odd_x = noise(x, self.ball, model.bounds, rng)
            else:  # FGSM, by the gradient that Eq. 2 needs anyway
                odd_x = self.ball.step(x, gradient, model.bounds)
            odd, _ = batch_figures(models, odd_x, odd_y, y)
            yield BatchPair(own.outliers[piece], clean, odd, excess_loss(gradient, odd_x - x))


def foreign_images(images: Sequence[PairedImages], task: int, piece: slice) -> tuple[Split, Tensor]:
    """Images of the task before, of the second for the first; from their beginning again where they are too few."""
    other = images[task - 1 if task else 1]
    places = torch.arange(piece.start, piece.stop, device=other.rows.device) % len(other.rows)
    return other.clean, other.rows[places]


# ── what is measured on them ────────────────────────────────────────────────────────────────────────────────


def batch_figures(models: Sequence[TaskModel], x: Tensor, y: Tensor, right: Tensor) -> tuple[BatchFigures, Tensor]:
    """A batch by the last of the models, which is the task's own, and by those of earlier tasks; and the gradient of
    the summed loss by the images. `y` are the labels learned from, `right` those that should be."""
    own = models[-1]
    leaves = {name: weight.requires_grad_() for name, weight in backbone(own.weights).items()}
    images = x.detach().requires_grad_()
    with torch.enable_grad():
        logits = own.forward(images, {**own.weights, **leaves}).logits
        loss = F.cross_entropy(logits, y, reduction="none")
        gradients = grad(loss.sum(), {IMAGES: images, **leaves})
    logits, by_images = logits.detach(), gradients.pop(IMAGES)
    found = {
        "loss": loss.detach(),
        "right_logit": logits.gather(1, right[:, None])[:, 0],
        "current_logit": logits.mean(1),  # over the classes of the task
        "weight_gradient": norms(gradients, own.method.net.weight_names(), len(x)),
    }
    if len(models) > 1:
        past = torch.cat([model.logits(x) for model in models[:-1]], 1)
        found["past_logit"] = past.mean(1)  # over the classes of earlier tasks
        found["past_gradient"] = past_gradient(torch.cat([past, logits], 1), past.shape[1])
    return found, by_images


def backbone(weights: Weights) -> Gradient:
    """What all tasks share, cut off from any graph."""
    return {name: weight.detach() for name, weight in weights.items() if name.startswith("backbone.")}


def norms(gradients: Gradient, layers: dict[str, str], images: int) -> dict[str, float]:
    """Of the gradient of the mean loss: over all of the backbone, and by layer."""
    by_layer = {layer: float(norm({name: gradients[name]})) for layer, name in layers.items() if name in gradients}
    return {name: value / images for name, value in {ALL: float(norm(gradients)), **by_layer}.items()}


def mean_loss(trained: TrainedMethod, task: int, method: Method, images: PairedImages) -> float:
    """Of a task's images as they should be."""
    model, found = TaskModel(method, task, images.clean, progress=trained.progress), []
    for piece in images.pieces():
        rows = images.rows[piece]
        logits = model.logits(model.pixels(images.clean, rows))
        found.append(F.cross_entropy(logits, images.clean.y[rows], reduction="none"))
    return float(torch.cat(found).mean())


# ── in few numbers ──────────────────────────────────────────────────────────────────────────────────────────


def summary(pairs: Sequence[BatchPair]) -> dict[str, Any]:
    """A task's figures, as means over its outliers. The growth of the loss is that of the whole batch, for each outlier
    in it: where images are coupled, an outlier harms its neighbors too, and Eq. 2 to first order counts that in."""
    outliers = torch.cat([pair.outliers for pair in pairs])
    count = int(outliers.sum())
    found: dict[str, Any] = {"images": len(outliers), "outliers": count}
    if count == 0:
        return {**found, **dict.fromkeys(("loss", "excess", "past_gradient", "weight_gradient"))}
    grown = sum(float((pair.odd["loss"] - pair.clean["loss"]).double().sum()) for pair in pairs)
    predicted = sum(float(pair.predicted.double().sum()) for pair in pairs)
    gradients = {
        layer: both(
            fmean(pair.clean["weight_gradient"][layer] for pair in pairs),
            fmean(pair.odd["weight_gradient"][layer] for pair in pairs),
        )
        for layer in pairs[0].clean["weight_gradient"]
    }
    return {
        **found,
        "loss": over_outliers(pairs, "loss"),
        "excess": {"real": grown / count, "first_order": predicted / count},
        "past_gradient": over_outliers(pairs, "past_gradient"),
        "weight_gradient": {**gradients.pop(ALL), "layers": gradients},
    }


def over_outliers(pairs: Sequence[BatchPair], figure: str) -> dict[str, float | None] | None:
    """Mean over all outliers; None where there are no past classes."""
    if figure not in pairs[0].clean:
        return None
    clean, odd = ([pair.clean[figure] for pair in pairs], [pair.odd[figure] for pair in pairs])
    outliers = torch.cat([pair.outliers for pair in pairs])
    return both(*(float(torch.cat(values)[outliers].mean()) for values in (clean, odd)))


def both(clean: float, odd: float) -> dict[str, float | None]:
    return {"clean": clean, "outlier": odd, "ratio": odd / clean if clean > 0 else None}


def claims(pairs: Sequence[BatchPair], rises: Sequence[float]) -> list[dict[str, Any]]:
    """How often each of the paper's inequalities held, in percent, with Wilson's interval."""
    found: list[tuple[str, str, list[bool]]] = []
    for figure, (rising, text) in OF_IMAGES.items():
        sides = [(pair.clean[figure], pair.odd[figure], pair.outliers) for pair in pairs if figure in pair.clean]
        held = [(odd > clean if rising else odd < clean)[outliers] for clean, odd, outliers in sides]
        found.append((text, "images", torch.cat(held).tolist() if held else []))
    with_outliers = [pair for pair in pairs if bool(pair.outliers.any())]
    grew = [pair.odd["weight_gradient"][ALL] > pair.clean["weight_gradient"][ALL] for pair in with_outliers]
    found += [(OF_BATCHES, "batches", grew), (OF_LESSONS, "lessons", [rise > 0 for rise in rises])]
    counts = [(text, unit, sum(held), len(held)) for text, unit, held in found if held]
    return [
        {"claim": text, "over": unit, "held": 100 * held / n, "of": n, "interval": list(wilson(held, n))}
        for text, unit, held, n in counts
    ]


def result(source: str, tasks: Sequence[dict[str, Any]], pairs: Sequence[BatchPair]) -> ProbeResult:
    def listed(*path: str) -> list[float]:
        """A figure of every task that has it."""
        values: list[Any] = list(tasks)
        for name in path:
            values = [value[name] for value in values if value[name] is not None]
        return values

    def mean(*path: str) -> float | None:
        values = listed(*path)
        return fmean(values) if values else None

    def ratio(figure: str) -> float | None:
        """Of the means over tasks: a task with next to no gradient would rule a mean of ratios."""
        clean, odd = listed(figure, "clean"), listed(figure, "outlier")
        return sum(odd) / sum(clean) if sum(clean) > 0 else None

    rises = listed("past_loss_rise")
    means = {
        "excess": mean("excess", "real"),
        "first_order": mean("excess", "first_order"),
        "past_gradient_ratio": ratio("past_gradient"),
        "weight_gradient_ratio": ratio("weight_gradient"),
        "span": mean("span"),
        "relative_span": mean("relative_span"),
        "past_loss_rise": mean("past_loss_rise"),
        "correlation": agreement(listed("span"), rises),
    }
    names = {
        "excess loss": "excess",
        "past gradient ×": "past_gradient_ratio",
        "weight gradient ×": "weight_gradient_ratio",
        "weight span": "span",
    }
    figures = {"source": source, "tasks": list(tasks), "mean": means, "claims": claims(pairs, rises)}
    headline = {name: value for name, key in names.items() if (value := means[key]) is not None}
    arrays = {  # of every image, task after task
        "outlier": torch.cat([pair.outliers for pair in pairs]).to("cpu", torch.uint8),
        "clean_loss": torch.cat([pair.clean["loss"] for pair in pairs]).cpu(),
        "outlier_loss": torch.cat([pair.odd["loss"] for pair in pairs]).cpu(),
        "first_order": torch.cat([pair.predicted for pair in pairs]).cpu(),
    }
    return ProbeResult(figures, headline, arrays)


def agreement(spans: Sequence[float], rises: Sequence[float]) -> float | None:
    """Pearson's correlation over lessons; fewer than three always agree, and constant ones never do."""
    try:
        return correlation(spans, rises) if len(spans) > 2 else None
    except StatisticsError:
        return None
