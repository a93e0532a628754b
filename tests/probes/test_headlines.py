"""The headline of every probe, told by a plain computation of the same figure."""

import math
from collections.abc import Callable, Sequence
from functools import cache
from itertools import combinations, pairwise, permutations
from statistics import fmean
from typing import Any, NamedTuple

import pytest
import torch
from scipy.stats import beta, binomtest, norm
from torch import Tensor

from perdure import registry
from perdure.ops import attacks
from perdure.probes.probe import ProbeResult, TrainedMethod
from perdure.seeding import generator
from perdure.types import Split

from . import plain
from .plain import Answers, Weights, batches

Headline = dict[str, float]


made = cache(plain.make)


def answers(trained: TrainedMethod, part: str = "test") -> list[tuple[Answers, Split]]:
    """Of every task: how it is answered, and its images."""
    splits = [getattr(task, part) for task in trained.tasks]
    return [(Answers(trained.method, task, split), split) for task, split in enumerate(splits)]


def percent(right: Tensor) -> float:
    return 100 * right.double().mean().item()


# --- attacks ---


def under_attack(
    trained: TrainedMethod,
    name: str,
    attack: Callable[[Answers, Tensor, Tensor, torch.Generator], Sequence[Tensor]],
    limit: int | None = None,
    level: int = 0,
) -> float:
    """Mean over tasks of what stays right, whichever of the attacked images is taken."""
    by_task = []
    for model, split in answers(trained):
        right = []
        for number, (x, y) in enumerate(batches(split, limit)):
            moved = attack(model, x, y, generator(0, "attack", name, model.task, level, number))
            right.append(torch.stack([model.right(images, y) for images in moved]).all(0))
        by_task.append(percent(torch.cat(right)))
    return fmean(by_task)


def fgsm() -> Headline:
    radii = {"FGSM 4/255": 4 / 255, "FGSM 16/255": 16 / 255}
    return {
        name: under_attack(made().trained, "fgsm", lambda model, x, y, _, r=radius: [plain.fgsm(model, x, y, r)])  # type: ignore[misc]
        for name, radius in radii.items()
    }


def pgd() -> Headline:
    """At both strengths from draws of their own."""
    found = {}
    for level, (name, radius) in enumerate({"PGD-3 8/255": 8 / 255, "PGD-3 12/255": 12 / 255}.items()):
        found[name] = under_attack(
            made().trained,
            "pgd",
            lambda model, x, y, rng, r=radius: [plain.pgd(model, x, y, r, rng, steps=3, restarts=2)],  # type: ignore[misc]
            level=level,
        )
    return found


def apgd() -> Headline:
    """An image counts as right if both losses leave it right; one stream of chance for both."""

    def both(model: Answers, x: Tensor, y: Tensor, rng: torch.Generator) -> list[Tensor]:
        return [plain.apgd(model, x, y, 8 / 255, rng, steps=8, loss=loss) for loss in ("ce", "dlr")]

    return {"APGD 8/255": under_attack(made().trained, "apgd", both, 10)}


def apgd_t() -> Headline:
    def attack(model: Answers, x: Tensor, y: Tensor, rng: torch.Generator) -> list[Tensor]:
        return [plain.apgd_t(model, x, y, 8 / 255, rng, steps=8)]

    return {"APGD-T 8/255": under_attack(made().trained, "apgd-t", attack, 10)}


def fab() -> Headline:
    def attack(model: Answers, x: Tensor, y: Tensor, _: torch.Generator) -> list[Tensor]:
        return [plain.fab(model, x, y, 4 / 255, steps=4)]

    return {"FAB 4/255": under_attack(made().trained, "fab", attack, 10)}


def square() -> Headline:
    def attack(model: Answers, x: Tensor, y: Tensor, rng: torch.Generator) -> list[Tensor]:
        return [plain.square(model, x, y, 24 / 255, rng, queries=12)]

    return {"Square 24/255": under_attack(made().trained, "square", attack, 30)}


def noise() -> Headline:
    return {
        "noise 48/255": under_attack(
            made().trained, "noise", lambda _model, x, _y, rng: [plain.noise(x, 48 / 255, rng)]
        )
    }


def over_time() -> Headline:
    rows = []
    for lesson, snapshot in enumerate(made().trained.snapshots):
        row = []
        for task in range(lesson + 1):
            split = made().trained.tasks[task].test
            model, rng = Answers(snapshot, task, split), generator(0, "over-time", task)
            right = [
                model.right(plain.pgd(model, x, y, 8 / 255, rng, steps=3), y) for x, y in batches(split)
            ]  # the same draws after each lesson
            row.append(percent(torch.cat(right)))
        rows.append(row)
    last, attack = rows[-1], "PGD-3 8/255"
    lost = fmean(last[task] - rows[task][task] for task in (0, 1))
    return {f"robust ACC, {attack}": fmean(last), f"robust BWT, {attack}": lost}


def smoothing() -> Headline:
    """The bound by scipy's quantile of Beta. Norms keep statistics here, so that none are taken."""
    rows: list[list[list[float | None]]] = []
    for lesson, snapshot in enumerate(made().trained.snapshots):
        row = []
        for task in range(lesson + 1):
            split = made().trained.tasks[task].test
            model, found = Answers(snapshot, task, split), []
            for number, (image, label) in enumerate(zip(*batches(split, 12)[0], strict=True)):
                rng = generator(0, "smoothing", task, number)
                chosen, counted = (
                    model(image + 0.25 * torch.randn((n, *image.shape), generator=rng).double()).argmax(1)
                    for n in (20, 200)
                )
                top = max(range(3), key=lambda name: int((chosen == name).sum()))
                hits = int((counted == top).sum())
                p = float(beta.ppf(0.02, hits, 201 - hits)) if hits else 0.0
                found.append(0.25 * float(norm.ppf(p)) if p > 0.5 and top == int(label) else None)
            row.append(found)
        rows.append(row)
    told = {}
    for at in (0.0, 0.1, 0.3):
        matrix = [[100 * fmean(r is not None and r >= at for r in found) for found in row] for row in rows]
        told[f"certified ACC {at:g}, σ 0.25"] = fmean(matrix[-1])
        told[f"certified BWT {at:g}, σ 0.25"] = fmean(matrix[-1][task] - matrix[task][task] for task in (0, 1))
    return told


def transfer() -> Headline:
    """What PGD crafts on one, tried on all; all crafted from the same draws."""
    several = made()
    right: dict[tuple[int, int], list[Tensor]] = {}
    for task in range(3):
        split = made().trained.tasks[task].test
        models = [Answers(one.method, task, split) for one in several]
        for a, crafting in enumerate(models):
            rng = generator(0, "transfer", task)
            for x, y in batches(split):
                moved = plain.pgd(crafting, x, y, 12 / 255, rng, steps=3)
                for b, tried in enumerate(models):
                    right.setdefault((a, b), []).append(tried.right(moved, y))
    cells = {pair: torch.cat(parts) for pair, parts in right.items()}
    pairs = list(permutations(range(3), 2))
    masked = {b for a, b in pairs if sign_verdict(cells[b, b], cells[a, b], len(pairs)) != "pass"}
    return {
        "white box": fmean(percent(cells[b, b]) for b in range(3)),
        "transferred": fmean(percent(cells[pair]) for pair in pairs),
        "masked": float(len(masked)),
    }


# --- masking ---


class Check(NamedTuple):
    name: str
    verdict: str
    value: float


def sign_verdict(judged: Tensor, rival: Tensor, comparisons: int) -> str:
    taken, spared = int((judged & ~rival).sum()), int((~judged & rival).sum())
    points = 100 * (taken - spared) / len(judged)
    p = binomtest(taken, taken + spared, alternative="greater").pvalue if taken + spared else 1.0
    if comparisons * p <= 0.01 and points >= 5:
        return "fail"
    return "warn" if comparisons * p <= 0.05 and points >= 2 else "pass"


def wilson(right: Tensor) -> tuple[float, float]:
    found = binomtest(int(right.sum()), len(right)).proportion_ci(method="wilson")
    return 100 * found.low, 100 * found.high


STRENGTHS = (8 / 255, 32 / 255, 0.5)
RANKS = ("pass", "warn", "fail")


@cache
def masking_checks() -> list[Check]:
    """The battery, written out: 24 images a task, PGD of 3 steps, 6 queries of Square. The network behind a saturated
    softmax is judged, so that something is found."""
    trained = made().sure
    parts = [(model, *batches(split, 24)[0]) for model, split in answers(trained)]

    def left(purpose: str, attack: Callable[[Answers, Tensor, Tensor, torch.Generator], Tensor]) -> Tensor:
        streams = [generator(0, "masking", purpose, model.task) for model, _, _ in parts]
        found = [model.right(attack(model, x, y, rng), y) for (model, x, y), rng in zip(parts, streams, strict=True)]
        return torch.cat(found)

    def compared(name: str, pairs: Sequence[tuple[Tensor, Tensor]]) -> Check:
        graded = [(0, 0.0)]
        above = [(judged, rival) for judged, rival in pairs if percent(judged) > chance]
        if above:
            graded = [
                (RANKS.index(sign_verdict(judged, rival, len(pairs))), percent(judged) - percent(rival))
                for judged, rival in above
            ]
        rank, points = max(graded)
        return Check(name, RANKS[rank], points)

    chance = 100 / 3
    clean = left("clean", lambda _model, x, _y, _rng: x)
    curves: dict[str, list[Tensor]] = {
        "PGD": [left("PGD", lambda m, x, y, rng, r=r: plain.pgd(m, x, y, r, rng, steps=3)) for r in STRENGTHS],  # type: ignore[misc]
        "FGSM": [left("FGSM", lambda m, x, y, _, r=r: plain.fgsm(m, x, y, r)) for r in STRENGTHS],  # type: ignore[misc]
        "Square": [
            left("Square", lambda m, x, y, rng, r=r: plain.square(m, x, y, r, rng, queries=6))  # type: ignore[misc]
            for r in STRENGTHS
        ],
        "noise": [left("noise", lambda _m, x, _y, rng, r=r: plain.noise(x, r, rng)) for r in STRENGTHS],  # type: ignore[misc]
    }
    by_pgd = curves["PGD"]
    lowest = [min(by_pgd[: k + 1], key=percent) for k in range(2)]
    half = (percent(clean) + chance) / 2
    middle = min(range(3), key=lambda k: (abs(percent(by_pgd[k]) - half), -k))
    radius = STRENGTHS[middle]

    def by_scaled(surrogate: bool) -> Callable[[Answers, Tensor, Tensor, torch.Generator], Tensor]:
        def attack(model: Answers, x: Tensor, y: Tensor, rng: torch.Generator) -> Tensor:
            near = Scaled(model, shifted(model, trained) if surrogate else {})
            return plain.pgd(near, x, y, radius, rng, steps=3)

        return attack

    again = left("PGD again", lambda m, x, y, rng: plain.pgd(m, x, y, radius, rng, steps=3))
    low, high = wilson(by_pgd[middle])
    inside = low <= percent(again) <= high or max(percent(again), percent(by_pgd[middle])) <= chance
    meeting = wilson(again)[0] <= high and low <= wilson(again)[1]
    return [
        compared("falls with strength", list(zip(by_pgd[1:], lowest, strict=True))),
        Check("nothing left at 0.5", "pass" if wilson(by_pgd[-1])[0] <= chance else "fail", percent(by_pgd[-1])),
        compared("many steps beat one", list(zip(by_pgd, curves["FGSM"], strict=True))),
        compared("white box beats black box", list(zip(by_pgd, curves["Square"], strict=True))),
        compared("white box beats noise", list(zip(by_pgd, curves["noise"], strict=True))),
        compared("white box beats transfer", [(by_pgd[middle], left("PGD", by_scaled(surrogate=True)))]),
        compared("loss scale", [(by_pgd[middle], left("PGD", by_scaled(surrogate=False)))]),
        Check(
            "same under another seed",
            "pass" if inside else "warn" if meeting else "fail",
            percent(again) - percent(by_pgd[middle]),
        ),
        *along_the_gradient(parts),
        Check("same answer twice", "pass", 0.0),  # nothing here is drawn
    ]


class Scaled(Answers):
    """Logits over their deviation, which is a constant to the gradient; by other weights."""

    def __init__(self, model: Answers, weights: Weights) -> None:
        self.state, self.task, self.mean, self.std = {**model.state, **weights}, model.task, model.mean, model.std

    def __call__(self, pixels: Tensor, weights: Weights | None = None) -> Tensor:
        logits = super().__call__(pixels, weights)
        return logits / logits.detach().std(1, keepdim=True)


def shifted(model: Answers, trained: TrainedMethod) -> Weights:
    """Every filter moved by 5 % of its length."""
    rng, found = generator(0, "masking", "twin", model.task), {}
    for name, weight in trained.method.net.named_parameters():
        drawn = torch.randn(weight.shape, generator=rng).double()
        if weight.ndim > 1:
            rows = [row + 0.05 * row.norm() / way.norm() * way for row, way in zip(weight.detach(), drawn, strict=True)]
            found[name] = torch.stack(rows)
    return found


def along_the_gradient(parts: Sequence[tuple[Answers, Tensor, Tensor]]) -> list[Check]:
    """Eight points as far as 1/255, losses of logits over their deviation at the start."""
    gone, foretold, images = 0, 0.0, 0
    along, anyhow = [0.0] * 9, [0.0] * 9
    for model, x, y in parts:
        wrong = 1 - model(x).softmax(1).gather(1, y[:, None])[:, 0]
        gone += int(((wrong <= 1e-12) | (model.gradient(x, y).flatten(1).abs().amax(1) == 0)).sum())
        images += len(y)
        spread = model(x).std(1, keepdim=True)
        start = x.clone().requires_grad_()
        total = plain.height(model(start) / spread, y, "ce").sum()
        (slope,) = torch.autograd.grad(total, start)
        rng = generator(0, "masking", "walk", model.task)
        signs = 2.0 * torch.randint(2, x.shape, generator=rng) - 1
        for way, losses in ((slope.sign(), along), (signs, anyhow)):
            for point in range(9):
                at = (x + point / 8 / 255 * way).clamp(0, 1)
                losses[point] += float(plain.height(model(at) / spread, y, "ce").sum())
        foretold += float((slope * ((x + slope.sign() / 8 / 255).clamp(0, 1) - x)).sum())

    def detour(losses: Sequence[float], gained: float) -> float:
        return 1 - max(gained, 0) / sum(abs(b - a) for a, b in pairwise(losses))

    ratio, share = (along[1] - along[0]) / foretold, 100 * gone / images
    own, other = detour(along, along[-1] - along[0]), detour(anyhow, abs(anyhow[-1] - anyhow[0]))
    smooth = own <= min(0.5, max(0.1, other))
    return [
        Check("gradients are there", "pass" if share <= 1 else "warn" if share <= 10 else "fail", share),
        Check("first order holds", "pass" if 0.5 <= ratio <= 2 else "warn" if 0.25 <= ratio <= 4 else "fail", ratio),
        Check("smooth uphill", "pass" if smooth else "warn" if own <= 0.5 else "fail", 100 * own),
    ]


def masking() -> Headline:
    verdicts = [check.verdict for check in masking_checks()]
    return {f"masking {verdict}s": float(verdicts.count(verdict)) for verdict in ("fail", "warn")}


# --- other images ---


def corruption() -> Headline:
    """Two kinds without chance, by their formulas: brighter by 0.05 and 0.3, 0.75 and 0.15 of the contrast."""

    def brighter(x: Tensor, more: float) -> Tensor:
        return (x + more).clamp(0, 1)

    def flatter(x: Tensor, left: float) -> Tensor:
        means = x.mean((2, 3), keepdim=True)
        return means + left * (x - means)

    ways = [(brighter, 0.05), (brighter, 0.3), (flatter, 0.75), (flatter, 0.15)]
    found = [
        percent(model.right(way(split.x, size), split.y))
        for model, split in answers(made().trained)
        for way, size in ways
    ]
    return {"corrupted": fmean(found)}


def calibration() -> Headline:
    """Five bins of equal width over all images together."""
    bins: list[list[tuple[float, bool]]] = [[] for _ in range(5)]
    nll, brier = [], []
    for model, split in answers(made().trained):
        for row, label in zip(model(split.x).softmax(1).tolist(), split.y.tolist(), strict=True):
            top = max(row)
            bins[math.ceil(5 * top) - 1].append((top, row.index(top) == label))
            nll.append(-math.log(row[label]))
            brier.append(sum((value - (place == label)) ** 2 for place, value in enumerate(row)))
    gaps = [abs(sum(top - right for top, right in one)) for one in bins]
    return {"ECE": 100 * sum(gaps) / len(nll), "NLL": fmean(nll), "Brier": fmean(brier)}


def outliers() -> Headline:
    """FGSM of 8/255 on 75 training images of each task, by the snapshot that had just learned it."""
    excess, past, norms, spans = [], [], [], []
    snapshots = made().trained.snapshots
    for task, snapshot in enumerate(snapshots):
        split = made().trained.tasks[task].train
        heads = [Answers(snapshot, head, split) for head in range(task + 1)]
        grown, share, length = 0.0, {"clean": [], "odd": []}, {"clean": [], "odd": []}
        for x, y in batches(split, 75):
            sides = {"clean": x, "odd": plain.fgsm(heads[-1], x, y, 8 / 255)}
            grown += float((heads[-1].losses(sides["odd"], y) - heads[-1].losses(x, y)).sum())
            for side, images in sides.items():
                logits = torch.cat([head(images) for head in heads], 1)
                share[side] += logits.softmax(1)[:, : 3 * task].sum(1).tolist()
                shared = {k: w.clone().requires_grad_() for k, w in heads[-1].weights.items() if "backbone" in k}
                loss = heads[-1].losses(images, y, shared).mean()
                slopes = torch.autograd.grad(loss, list(shared.values()))
                length[side].append(math.sqrt(sum(float(slope.square().sum()) for slope in slopes)))
        excess.append(grown / 75)
        norms.append([fmean(length[side]) for side in ("clean", "odd")])
        if task:
            past.append([fmean(share[side]) for side in ("clean", "odd")])
            pairs = zip(snapshot.net.backbone.parameters(), snapshots[task - 1].net.backbone.parameters(), strict=True)
            spans.append(math.sqrt(sum(float((now - before).detach().square().sum()) for now, before in pairs)))
    return {
        "excess loss": fmean(excess),
        "past gradient ×": sum(odd for _, odd in past) / sum(clean for clean, _ in past),
        "weight gradient ×": sum(odd for _, odd in norms) / sum(clean for clean, _ in norms),
        "weight span": fmean(spans),
    }


# --- the loss around the weights ---


def flat_loss(model: Answers, split: Split, limit: int) -> tuple[Callable[[Tensor], Tensor], Tensor, list[slice]]:
    """The mean loss of some images as a function of all weights in use, these weights, and where those of two or more
    dimensions lie."""
    x, y = (torch.cat(parts) for parts in zip(*batches(split, limit), strict=True))
    weights = model.weights
    sizes = [w.numel() for w in weights.values()]
    ends = torch.tensor([0, *sizes]).cumsum(0).tolist()
    layers = [slice(a, b) for a, b, w in zip(ends, ends[1:], weights.values(), strict=False) if w.ndim > 1]

    def loss(vector: Tensor) -> Tensor:
        parts = {k: p.view(w.shape) for (k, w), p in zip(weights.items(), vector.split(sizes), strict=True)}
        return model.losses(x, y, parts).mean()

    return loss, torch.cat([w.flatten() for w in weights.values()]), layers


def flatness() -> Headline:
    """Four steps uphill on the sphere of 0.6 of each layer's length, so wide that the last may lead down again."""
    rises = []
    for model, split in answers(made().trained, "train"):
        loss, start, layers = flat_loss(model, split, 80)

        def scaled(way: Tensor, start: Tensor = start, layers: list[slice] = layers) -> Tensor:
            found = torch.zeros_like(way)
            for layer in layers:
                found[layer] = way[layer] / way[layer].norm() * start[layer].norm()
            return found

        def slope(at: Tensor, loss: Callable[[Tensor], Tensor] = loss) -> Tensor:
            return torch.autograd.functional.jacobian(loss, at)  # type: ignore[no-untyped-call, no-any-return]

        uphill = slope(start)
        way = best = scaled(uphill)
        heights, length = [float(loss(start + 0.6 * way))], 1.0
        for _ in range(3):
            if heights[-1] == max(heights) and heights.count(heights[-1]) == 1:
                best, uphill = way, slope(start + 0.6 * way)
            else:
                length /= 2
            way = scaled(best + length * scaled(uphill))
            heights.append(float(loss(start + 0.6 * way)))
        rises.append(max(heights) - float(loss(start)))
    return {"flatness": fmean(rises)}


def curvature() -> Headline:
    """From the whole Hessian; its trace by the same signs as the probe draws."""
    tops, traces = [], []
    for model, split in answers(made().trained, "train"):
        loss, start, _ = flat_loss(model, split, 16)
        hessian = torch.autograd.functional.hessian(loss, start)  # type: ignore[no-untyped-call]
        tops.append(float(torch.linalg.eigvalsh(hessian)[-1]))
        rng = generator(0, "curvature", "trace", model.task)
        signs = [2.0 * torch.randint(0, 2, start.shape, generator=rng).double() - 1 for _ in range(3)]
        traces.append(fmean(float(v @ hessian @ v) for v in signs))
    return {"top eigenvalue": fmean(tops), "Hessian trace": fmean(traces)}


def direction(model: Answers, number: int) -> Weights:
    """At random, every filter as long as its own weights; biases stay."""
    found = {}
    for name, weight in model.state.items():
        if weight.ndim > 1:
            drawn = torch.randn(weight.shape, generator=generator(0, "landscape", number, name)).double()
            rows = [way / way.norm() * row.norm() for row, way in zip(weight, drawn, strict=True)]
            found[name] = torch.stack(rows)
    return found


def loss_beside(model: Answers, split: Split, limit: int, *ways: tuple[Weights, float]) -> float:
    x, y = (torch.cat(parts) for parts in zip(*batches(split, limit), strict=True))
    names = ways[0][0]
    moved = {name: model.state[name] + sum(size * way[name] for way, size in ways) for name in names}
    return float(model.losses(x, y, moved).mean())


def landscape() -> Headline:
    """Two directions, read at 0.1 between 0 and 0.25."""
    rises = []
    for model, split in answers(made().trained, "train"):
        for number in range(2):
            way = direction(model, number)
            middle, up, down = (loss_beside(model, split, 80, (way, size)) for size in (0, 0.25, -0.25))
            rises.append(0.4 * ((up + down) / 2 - middle))
    return {"rise at 0.1": fmean(rises)}


def plane() -> Headline:
    """Of the second task, on a grid of five by five."""
    model, split = answers(made().trained, "train")[1]
    one, two = direction(model, 0), direction(model, 1)
    steps = (-0.4, -0.2, 0, 0.2, 0.4)
    heights = [loss_beside(model, split, 75, (one, a), (two, b)) for a in steps for b in steps]
    return {"basin within 0.1 (%)": 100 * sum(height <= heights[12] + 0.1 for height in heights) / 25}


# --- features and layers ---


def geometry() -> Headline:
    """24 images of each task, all on one sphere, nine classes."""
    points, groups = [], []
    for model, split in answers(made().trained):
        ((x, y),) = batches(split, 24)
        for row, label in zip(model.hidden(x), y.tolist(), strict=True):
            points.append(row / row.norm())
            groups.append((model.task, label))
    potentials = [math.exp(-2 * float((a - b).square().sum())) for a, b in combinations(points, 2)]
    values = torch.linalg.svdvals(torch.stack(points) - torch.stack(points).mean(0))
    shares = [float(value / values.sum()) for value in values]
    strayed = []
    for place, (point, group) in enumerate(zip(points, groups, strict=True)):
        distances = {}
        for other in set(groups):
            members = [p for n, (p, g) in enumerate(zip(points, groups, strict=True)) if g == other and n != place]
            if members:
                distances[other] = float((point - torch.stack(members).mean(0)).norm())
        if group in distances:
            strayed.append(min(distances, key=lambda name: distances[name]) != group)
    return {
        "uniformity": math.log(fmean(potentials)),
        "effective rank": math.exp(-sum(share * math.log(share) for share in shares)),
        "class overlap": 100 * fmean(strayed),
    }


def capacity() -> Headline:
    """GPM's rule at ε = 0.8 on 40 images, and a forecast by whichever of three trends foretold the third task best."""
    bases: dict[str, Tensor] = {}
    taken: dict[str, list[float]] = {"conv": [], "fc": []}
    for task, snapshot in enumerate(made().trained.snapshots):
        split = made().trained.tasks[task].train
        model, ((x, _),) = Answers(snapshot, task, split), batches(split, 40)
        given = model.normalized(x)
        corners = [given[:, :, i : i + 3, j : j + 3].flatten(1).T for i in range(6) for j in range(6)]
        for layer, inputs in (("conv", torch.cat(corners, 1)), ("fc", model.pooled(x).T)):
            basis = bases.get(layer, inputs[:, :0])
            rest = inputs - basis @ basis.T @ inputs
            held = 1 - float(rest.square().sum() / inputs.square().sum())
            directions, lengths, _ = torch.linalg.svd(rest, full_matrices=False)
            count = 0
            for length in lengths:
                more = held + float(length**2 / inputs.square().sum())
                if held >= 0.8 or (task == 0 and more >= 0.8):  # the first task stops short of ε
                    break
                held, count = more, count + 1
            bases[layer] = torch.cat([basis, directions[:, :count]], 1)
            taken[layer].append(bases[layer].shape[1] / len(inputs))

    def foretold(shares: Sequence[float], trend: str) -> list[float]:
        """A hundred tasks ahead, task by task."""
        gains = [b - a for a, b in pairwise(shares)]
        free = sum(1 - share for share in shares[:-1])
        now, gain, found = shares[-1], gains[-1], []
        for _ in range(101):
            if trend == "share":
                gain = sum(gains) / free * (1 - now)
            elif trend == "count":
                gain = fmean(gains)
            else:
                gain *= min(sum(gains) / shares[-2], 1)
            now = min(now + gain, 1)
            found.append(now)
        return found

    errors = {
        trend: fmean(abs(foretold(shares[:2], trend)[0] - shares[2]) for shares in taken.values())
        for trend in ("share", "count", "fading")
    }
    trend = min(errors, key=lambda name: errors[name])
    left = [
        sum(share <= 0.95 + 1e-9 for share in foretold(shares, trend))  # 5 % have to stay free
        for shares in taken.values()
    ]
    found = {"capacity taken": 100 * max(shares[-1] for shares in taken.values())}
    return found | ({"tasks left": float(min(left))} if min(left) <= 100 else {})


# --- all of them ---

PLAIN: dict[str, tuple[dict[str, Any], Callable[[], Headline]]] = {  # values, and the headline for them
    "fgsm": ({"strengths": (4 / 255, 16 / 255)}, fgsm),
    "pgd": ({"strengths": (8 / 255, 12 / 255), "steps": 3, "restarts": 2}, pgd),
    "apgd": ({"strengths": (8 / 255,), "steps": 8, "images": 10}, apgd),
    "apgd-t": ({"strengths": (8 / 255,), "steps": 8, "images": 10}, apgd_t),
    "fab": ({"strengths": (4 / 255,), "steps": 4, "images": 10}, fab),
    "square": ({"strengths": (24 / 255,), "queries": 12, "images": 30}, square),
    "noise": ({"strengths": (48 / 255,)}, noise),
    "masking": ({"strengths": STRENGTHS[:2], "images": 24, "steps": 3, "queries": 6}, masking),
    "transfer": ({"strength": 12 / 255, "steps": 3}, transfer),
    "over-time": ({"strength": 8 / 255, "steps": 3}, over_time),
    "smoothing": (
        {
            "sigma": 0.25,
            "samples": 200,
            "selection": 20,
            "alpha": 0.02,
            "radii": (0.0, 0.1, 0.3),
            "images": 12,
            "over_time": True,
        },
        smoothing,
    ),
    "corruption": ({"kinds": ("brightness", "contrast"), "severities": (1, 5)}, corruption),
    "outliers": ({"images": 75}, outliers),
    "flatness": ({"radius": 0.6, "steps": 4, "images": 80}, flatness),
    "curvature": ({"steps": 40, "draws": 3, "images": 16}, curvature),
    "landscape": ({"directions": 2, "points": 5, "images": 80}, landscape),
    "plane": ({"task": 2, "reach": 0.4, "points": 5, "images": 75}, plane),
    "geometry": ({"images": 24}, geometry),
    "capacity": ({"threshold": 0.8, "images": 40}, capacity),
    "calibration": ({"bins": 5}, calibration),
}


def measured(name: str) -> ProbeResult:
    probe = registry.probes.load(name)(**PLAIN[name][0])
    for trained in made():
        trained.method.train()
    found: ProbeResult
    if probe.across:
        found = probe.measure_across(made())
    else:
        found = probe.measure(made().sure if name == "masking" else made().trained)
    return found


def test_no_probe_is_left_out() -> None:
    assert set(PLAIN) == set(registry.probes)


@pytest.mark.parametrize("name", PLAIN)
def test_the_headline_is_that_of_a_plain_computation(name: str) -> None:
    told = PLAIN[name][1]()
    assert measured(name).headline == pytest.approx(told, rel=1e-6, abs=1e-9)


def test_every_check_against_masking_is_that_of_a_plain_computation() -> None:
    found = [Check(one["name"], one["verdict"], one["value"]) for one in measured("masking").figures["checks"]]
    told = masking_checks()
    assert [check[:2] for check in found] == [check[:2] for check in told]
    assert [check.value for check in found] == pytest.approx([check.value for check in told], rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("loss", ["ce", "dlr"])
def test_apgd_goes_the_way_of_the_paper(loss: str) -> None:
    """Step by step, from the same starts: also where the released code reads the paper in another way."""
    trained, radius, steps = (
        made().trained,
        8 / 255,
        25,
    )  # checkpoints 11 and 15 are four apart: three rises are ρ of them
    model = trained.model(1)
    ((x, y),) = batches(trained.tasks[1].test, 10)
    shown = []
    inner = model.input_gradient
    model.input_gradient = lambda at, how: (shown.append(at), inner(at, how))[1]  # type: ignore[method-assign, func-returns-value]
    attacks.apgd(model, x, y, attacks.Ball("linf", radius), loss=loss, steps=steps, rng=generator(0, "way"))  # type: ignore[arg-type]
    told = plain.apgd_paths(
        Answers(trained.method, 1, trained.tasks[1].test), x, y, radius, generator(0, "way"), steps=steps, loss=loss
    )
    for step, points in enumerate(shown):
        torch.testing.assert_close(points, torch.cat([path[step] for path in told]), rtol=0, atol=1e-9)
