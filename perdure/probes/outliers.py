"""What outliers do to a continual learner: the argument of the paper's Sec. 3 (Eqs. 2–4, Fig. 2a), in numbers.

Every outlier has a twin, the image as it should be, in a batch that is otherwise the same: batch norm may couple the
images of a batch, so nothing else may differ between two that are compared.

The paper puts all classes so far under one softmax. Methods here have one head for each task, and past heads take no
part in later lessons: the gradient on past classes is what it would be if they did.
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
from perdure.ops.attacks import Ball, noise
from perdure.ops.contamination import outlier_rows
from perdure.ops.gradients import grad, norm
from perdure.ops.metrics import wilson
from perdure.ops.outliers import excess_loss, past_gradient, weight_span
from perdure.probes.probe import BATCH, Measured, Probe, Sight, Subject, Work
from perdure.schema import Count, Positive
from perdure.seeding import generator
from perdure.types import Gradient, Split, Weights, cut

IMAGES, ALL = "images", "all layers"
OF_IMAGES = {  # what the paper says of an outlier beside its twin: which figure, does it rise, and in words
    "loss": (True, "Eq. 2: the outlier has the higher loss"),
    "past_logit": (True, "Sec. 3.2: r_p rises (mean logit of past classes)"),
    "current_logit": (False, "Sec. 3.2: r_c falls (mean logit of the task's classes)"),
    "right_logit": (False, "Sec. 3.2: r_c falls (logit of the right class)"),
    "past_gradient": (True, "Eq. 3: the gradient on past classes' logits grows"),
}
OF_BATCHES = "Eq. 4: the gradient by the weights grows"
OF_LESSONS = "Fig. 2a: the lesson raised the loss of earlier tasks"


@dataclass(frozen=True)
class Twins:
    """The training images of a task that are looked at."""

    clean: Split  # as they should be
    odd: Split | None  # with the run's own outliers; None: they are made on the spot
    rows: Tensor
    outliers: Tensor  # (rows,) which of them are

    def pieces(self) -> list[slice]:
        return cut(len(self.rows), BATCH)


@dataclass(frozen=True)
class View:
    """What is seen of a batch, image by image (n,), and by layer."""

    loss: Tensor
    right_logit: Tensor
    current_logit: Tensor  # mean over the classes of the task
    past_logit: Tensor | None  # mean over those of earlier tasks; None: there is none
    past_gradient: Tensor | None
    weight_gradient: dict[str, float]  # norm for the mean loss of the batch


@dataclass(frozen=True)
class Pair:
    """A batch as it should be, and with the outliers in their places."""

    outliers: Tensor  # (n,) which images are
    clean: View
    odd: View
    predicted: Tensor  # (n,) excess loss to first order


class Outliers(Probe):
    """Of a run on a contaminated stream, its own outliers beside the images that they replaced. Of any other run,
    outliers that are made on the spot, one of every image."""

    needs_stages = True

    def __init__(
        self,
        *,
        kind: Literal["adversarial", "noise", "foreign"] = "adversarial",  # FGSM, random signs, another task's image
        strength: Positive = 8 / 255,  # by which adversarial and noisy pixels of [0, 1] move
        images: Count = 128,  # training images of each task
    ) -> None:
        self.kind = kind
        self.ball = Ball("linf", strength)
        self.images = images

    def work(self, subject: Subject) -> Work:
        """Both batches forward and back, and through earlier heads; earlier tasks again after every lesson."""
        sizes = [min(len(task.train), self.images) for task in subject.tasks]
        lessons = min(len(subject.history()), len(sizes))
        looks = sum(2 * task * size for task, size in enumerate(sizes))
        again = sum(sum(sizes[:lesson]) for lesson in range(lessons))
        return Work(looks=looks + again, slopes=2 * sum(sizes))

    def measure(self, subject: Subject) -> Measured:
        stages = subject.history()
        twins = self._twins(subject)
        found: list[list[Pair]] = []
        tasks: list[dict[str, Any]] = []
        losses: list[float] = []  # of the tasks so far, as they should be, by the stage before
        before: Weights = {}
        for task, current in enumerate(subject.tasks):
            method = subject.having_learned(task)
            found.append(list(self._pairs(subject, task, method, twins)))
            lesson: dict[str, Any] = {"span": None, "relative_span": None, "past_loss_rise": None}
            weights = backbone(method.weights())
            if 0 < task < len(stages):  # tasks of one lesson share a stage: nothing came between them
                now = [mean_loss(subject, old, method, twins[old]) for old in range(task)]
                span, relative = weight_span(weights, before)
                rise = fmean(new - old for new, old in zip(now, losses, strict=True))
                lesson = {"span": span, "relative_span": relative, "past_loss_rise": rise}
                losses = now
            tasks.append({"task": current.name, **summary(found[-1]), **lesson})
            losses.append(float(torch.cat([pair.clean.loss for pair in found[-1]]).mean()))
            before = weights
        source = self.kind if twins[0].odd is None else "those of the run"
        return summed_up(source, tasks, [pair for pairs in found for pair in pairs])

    # ── the images ──────────────────────────────────────────────────────────────────────────────────────────

    def _twins(self, subject: Subject) -> list[Twins]:
        parts = [task.train for task in subject.tasks]
        clean = [task.train.to(part.y.device) for task, part in zip(subject.clean, parts, strict=False)]
        changed = [outlier_rows(one, other) for one, other in zip(clean, parts, strict=False)]
        if any(len(rows) for rows in changed):
            return [self._chosen(one, other, rows) for one, other, rows in zip(clean, parts, changed, strict=True)]
        if self.kind == "foreign" and len(parts) < 2:
            raise WrongValue("foreign outliers are images of another task, and there is one task; use another kind")
        return [self._chosen(part, None, torch.arange(len(part), device=part.y.device)) for part in parts]

    def _chosen(self, clean: Split, odd: Split | None, changed: Tensor) -> Twins:
        """Outliers before others, but mixed among them in the order in which all probes take images."""
        (order,) = clean.pieces(len(clean))
        outlier = torch.zeros(len(clean), dtype=torch.bool, device=order.device)
        outlier[changed] = True
        first = torch.cat([outlier[order].nonzero()[:, 0], (~outlier[order]).nonzero()[:, 0]])[: self.images]
        rows = order[first.sort().values]
        return Twins(clean, odd, rows, outlier[rows])

    def _pairs(self, subject: Subject, task: int, method: Method, twins: Sequence[Twins]) -> Iterator[Pair]:
        own = twins[task]
        sights = [Sight(method, head, own.clean, meter=subject.meter) for head in range(task + 1)]
        chance = generator(0, "outliers", task)
        for piece in own.pieces():
            rows, outliers = own.rows[piece], own.outliers[piece]
            x, y = pixels(sights[task], own.clean, rows), own.clean.y[rows]
            clean, slope = view(sights, x, y, y)
            if own.odd is not None:
                odd_x, odd_y = pixels(sights[task], own.odd, rows), own.odd.y[rows]
            elif self.kind == "foreign":
                odd_x, odd_y = pixels(sights[task], *strangers(twins, task, piece)), y
            elif self.kind == "noise":
                odd_x, odd_y = noise(x, self.ball, sights[task].bounds, chance), y
            else:  # FGSM, by the slope that Eq. 2 needs anyway
                step = self.ball.radius * self.ball.steepest(slope)
                odd_x, odd_y = self.ball.project(x + step, x, sights[task].bounds), y
            odd, _ = view(sights, odd_x, odd_y, y)
            yield Pair(outliers, clean, odd, excess_loss(slope, odd_x - x))


def pixels(sight: Sight, split: Split, rows: Tensor) -> Tensor:
    return split.pixels(rows).to(next(iter(sight.weights.values())).dtype)


def strangers(twins: Sequence[Twins], task: int, piece: slice) -> tuple[Split, Tensor]:
    """Images of the task before, of the second for the first; from their beginning again where they are too few."""
    other = twins[task - 1 if task else 1]
    places = torch.arange(piece.start, piece.stop, device=other.rows.device) % len(other.rows)
    return other.clean, other.rows[places]


# ── what is seen of them ────────────────────────────────────────────────────────────────────────────────────


def view(sights: Sequence[Sight], x: Tensor, y: Tensor, right: Tensor) -> tuple[View, Tensor]:
    """A batch as the last of the sights, which is the task's own, and those of earlier tasks have it; and the gradient
    of the summed loss by the images. `y` are the labels learned from, `right` those that should be."""
    own = sights[-1]
    leaves = {name: weight.requires_grad_() for name, weight in backbone(own.weights).items()}
    images = x.detach().requires_grad_()
    with torch.enable_grad():
        logits = own.forward(images, {**own.weights, **leaves}).logits
        loss = F.cross_entropy(logits, y, reduction="none")
        slopes = grad(loss.sum(), {IMAGES: images, **leaves})
    logits = logits.detach()
    past = torch.cat([sight.logits(x) for sight in sights[:-1]], 1) if len(sights) > 1 else None
    slope = slopes.pop(IMAGES)
    seen = View(
        loss.detach(),
        logits.gather(1, right[:, None])[:, 0],
        logits.mean(1),
        None if past is None else past.mean(1),
        None if past is None else past_gradient(torch.cat([past, logits], 1), past.shape[1]),
        norms(slopes, own.method.net.weight_names(), len(x)),
    )
    return seen, slope


def backbone(weights: Weights) -> Gradient:
    """What all tasks share, cut off from any graph."""
    return {name: weight.detach() for name, weight in weights.items() if name.startswith("backbone.")}


def norms(slopes: Gradient, layers: dict[str, str], images: int) -> dict[str, float]:
    """Of the gradient of the mean loss: over all of the backbone, and by layer."""
    by_layer = {layer: float(norm({name: slopes[name]})) for layer, name in layers.items() if name in slopes}
    return {name: value / images for name, value in {ALL: float(norm(slopes)), **by_layer}.items()}


def mean_loss(subject: Subject, task: int, method: Method, twins: Twins) -> float:
    """Of a task's images as they should be."""
    sight = Sight(method, task, twins.clean, meter=subject.meter)
    found = []
    for piece in twins.pieces():
        rows = twins.rows[piece]
        logits = sight.logits(pixels(sight, twins.clean, rows))
        found.append(F.cross_entropy(logits, twins.clean.y[rows], reduction="none"))
    return float(torch.cat(found).mean())


# ── in few numbers ──────────────────────────────────────────────────────────────────────────────────────────


def summary(pairs: Sequence[Pair]) -> dict[str, Any]:
    """A task's figures, as means over its outliers. The growth of the loss is that of the whole batch, for each outlier
    in it: where images are coupled, an outlier harms its neighbors too, and Eq. 2 to first order counts that in."""
    outliers = torch.cat([pair.outliers for pair in pairs])
    count = int(outliers.sum())
    found: dict[str, Any] = {"images": len(outliers), "outliers": count}
    if count == 0:
        return {**found, **dict.fromkeys(("loss", "excess", "past_gradient", "weight_gradient"))}
    grown = sum(float((pair.odd.loss - pair.clean.loss).double().sum()) for pair in pairs)
    predicted = sum(float(pair.predicted.double().sum()) for pair in pairs)
    layers = pairs[0].clean.weight_gradient
    slopes = {
        layer: both(
            fmean(pair.clean.weight_gradient[layer] for pair in pairs),
            fmean(pair.odd.weight_gradient[layer] for pair in pairs),
        )
        for layer in layers
    }
    return {
        **found,
        "loss": over_outliers(pairs, "loss"),
        "excess": {"real": grown / count, "first_order": predicted / count},
        "past_gradient": None if pairs[0].clean.past_gradient is None else over_outliers(pairs, "past_gradient"),
        "weight_gradient": {**slopes.pop(ALL), "layers": slopes},
    }


def over_outliers(pairs: Sequence[Pair], figure: str) -> dict[str, float | None]:
    clean, odd = (
        float(torch.cat([getattr(side, figure)[pair.outliers] for pair, side in zip(pairs, sides, strict=True)]).mean())
        for sides in ([pair.clean for pair in pairs], [pair.odd for pair in pairs])
    )
    return both(clean, odd)


def both(clean: float, odd: float) -> dict[str, float | None]:
    return {"clean": clean, "outlier": odd, "ratio": odd / clean if clean > 0 else None}


def claims(pairs: Sequence[Pair], rises: Sequence[float]) -> list[dict[str, Any]]:
    """How often each of the paper's inequalities held, in percent, with Wilson's interval."""
    found = []
    for figure, (rising, text) in OF_IMAGES.items():
        held = []
        for pair in pairs:
            clean, odd = getattr(pair.clean, figure), getattr(pair.odd, figure)
            if clean is not None:
                held += ((odd > clean) if rising else (odd < clean))[pair.outliers].tolist()
        found.append((text, "images", held))
    odd_pairs = [pair for pair in pairs if bool(pair.outliers.any())]
    grew = [pair.odd.weight_gradient[ALL] > pair.clean.weight_gradient[ALL] for pair in odd_pairs]
    found += [(OF_BATCHES, "batches", grew), (OF_LESSONS, "lessons", [rise > 0 for rise in rises])]
    return [
        {
            "claim": text,
            "over": unit,
            "held": 100 * sum(held) / len(held),
            "of": len(held),
            "interval": list(wilson(sum(held), len(held))),
        }
        for text, unit, held in found
        if held
    ]


def summed_up(source: str, tasks: Sequence[dict[str, Any]], pairs: Sequence[Pair]) -> Measured:
    def listed(*path: str) -> list[float]:
        """A figure of every task that has it."""
        values: list[Any] = list(tasks)
        for name in path:
            values = [value[name] for value in values if value[name] is not None]
        return values

    def ratio(figure: str) -> float | None:
        """Of the means over tasks: a task with next to no gradient would rule a mean of ratios."""
        clean, odd = listed(figure, "clean"), listed(figure, "outlier")
        return sum(odd) / sum(clean) if sum(clean) > 0 else None

    rises, spans = listed("past_loss_rise"), listed("span")
    means = {
        "excess": mean(listed("excess", "real")),
        "first_order": mean(listed("excess", "first_order")),
        "past_gradient_ratio": ratio("past_gradient"),
        "weight_gradient_ratio": ratio("weight_gradient"),
        "span": mean(spans),
        "relative_span": mean(listed("relative_span")),
        "past_loss_rise": mean(rises),
        "correlation": agreement(spans, rises),
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
        "clean_loss": torch.cat([pair.clean.loss for pair in pairs]).cpu(),
        "outlier_loss": torch.cat([pair.odd.loss for pair in pairs]).cpu(),
        "first_order": torch.cat([pair.predicted for pair in pairs]).cpu(),
    }
    return Measured(figures, headline, arrays)


def mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None


def agreement(spans: Sequence[float], rises: Sequence[float]) -> float | None:
    """Pearson's correlation over lessons; fewer than three always agree, and constant ones never do."""
    try:
        return correlation(spans, rises) if len(spans) > 2 else None
    except StatisticsError:
        return None
