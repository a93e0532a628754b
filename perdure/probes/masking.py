"""Is it real? A battery that tells robustness from gradients that are merely hidden.

A network may withstand attacks because its answers are stable, or because its gradients mislead them: saturated, zero,
shattered or random ones. The second kind falls to the next attack. Each sign that gives it away (Athalye et al., ICML
2018; Carlini et al., 2019) is a check here, on few images, to be run beside a measurement of robustness and not in its
place. None proves robustness; a failed one says that figures under attack are too high.

Attacks are compared by a sign test on the same images in the same batches. Batch norm may couple the images of a batch,
so p is approximate: a difference counts only if it has size, too. And it counts only while more than chance is left of
the accuracy, for where nothing is left no attack can be said to fail.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from perdure.errors import WrongValue
from perdure.ops.attacks import Ball, Classifier, fgsm, noise, pgd, pgd_cost, random_signs
from perdure.ops.landscape import filter_normalized, moved
from perdure.ops.square import square, square_cost
from perdure.probes.probe import Cost, Probe, ProbeResult, TaskModel, TrainedMethod, accuracy, interval
from perdure.probes.robustness import both_units
from perdure.probes.verdicts import LEAST, RANKS, Verdict, sign_test, worst
from perdure.schema import Count
from perdure.seeding import generator

STRENGTHS = (1 / 255, 2 / 255, 4 / 255, 8 / 255, 16 / 255, 32 / 255, 64 / 255, 127.5 / 255)
GRAY = 0.5  # at this strength any image can be made the same gray: nothing is left to see
VANISHED = 1e-12  # of the gradient by the logits that a wrong answer has
POINTS, REACH = 8, 1 / 255  # of the line along the gradient; the first step is what the gradient must foretell
SURROGATE = 0.05  # of each filter's length

TEXTS = {  # check → what it says where it passes, and where not
    "falls with strength": (
        "with more room PGD never leaves more right answers",
        "with more room PGD leaves more right answers: it loses its way",
    ),
    "nothing left at 0.5": (
        "where all images may turn gray, PGD leaves no more than chance ({chance:.0f} %, by Wilson's interval)",
        "where all images may turn gray, PGD leaves more than chance ({chance:.0f} %, by Wilson's interval)",
    ),
    "many steps beat one": (
        "PGD is at least as strong as FGSM at each strength",
        "FGSM is stronger than PGD: the gradient misleads after the first step",
    ),
    "white box beats black box": (
        "PGD is at least as strong as Square, which sees no gradients",
        "Square, which sees no gradients, is stronger than PGD: gradients mislead",
    ),
    "white box beats noise": (
        "PGD is at least as strong as random noise",
        "random noise is stronger than PGD: gradients are worth nothing",
    ),
    "white box beats transfer": (
        "what is crafted on a surrogate with other gradients (weights off by 5 %) does less",
        "what is crafted on a surrogate (weights off by 5 %, logits divided) does more than the network's own gradient",
    ),
    "loss scale": (
        "dividing the logits by their spread makes PGD no stronger",
        "PGD grows stronger with the logits divided: a saturated softmax hides the gradient",
    ),
    "same under another seed": (
        "PGD from other starts leaves about as much (Wilson's interval)",
        "PGD from other starts leaves something else: give it restarts",
    ),
    "gradients are there": (
        "nearly every image has a gradient to follow",
        "images without a gradient (zero, or below 1e-12 of a wrong answer's) cannot be attacked along it",
    ),
    "first order holds": (
        f"a step of {255 * REACH / POINTS:g}/255 raises the loss about as far as the gradient foretells",
        f"a step of {255 * REACH / POINTS:g}/255 raises the loss not nearly as the gradient foretells",
    ),
    "smooth uphill": (
        f"the loss climbs along the gradient as far as {255 * REACH:g}/255, no more jagged than along a random line",
        f"the loss climbs along the gradient as far as {255 * REACH:g}/255, but in jags, or not at all",
    ),
    "same answer twice": (
        "two forward passes of a batch give the same logits bit for bit",
        "answers differ from pass to pass: attacks must average over chance",
    ),
}

Attack = Callable[[TaskModel, Tensor, Tensor, Ball, torch.Generator], Tensor]


@dataclass(frozen=True)
class MaskingCheck:
    name: str
    verdict: Verdict
    value: float
    unit: str
    says: str


class ScaledLogits:
    """The same answers with each image's logits divided by their own spread. Cross-entropy then has a gradient however
    large the logits are, while its plain gradient fades to nothing where the network is sure."""

    def __init__(self, model: Classifier) -> None:
        self.model = model

    @property
    def bounds(self) -> tuple[float, float]:
        return self.model.bounds

    def logits(self, x: Tensor) -> Tensor:
        return _scaled(self.model.logits(x))

    def input_gradient(self, x: Tensor, loss: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        logits, each, gradient = self.model.input_gradient(x, lambda logits: loss(_scaled(logits)))
        return _scaled(logits), each, gradient


class Masking(Probe):
    def __init__(
        self,
        *,
        strengths: tuple[float, ...] = STRENGTHS,  # in pixels of [0, 1]; 0.5 is always among them
        images: Count = 64,  # test images of each task: enough for signs, not for figures
        steps: Count = 20,  # of PGD
        queries: Count = 200,  # of the Square attack
        restarts: Count = 1,  # of PGD
    ) -> None:
        if any(not 0 < strength <= 1 for strength in strengths):
            raise WrongValue(f"strengths={strengths} are not allowed; give pixels above 0 and up to 1, such as 4/255")
        self.strengths = tuple(sorted({*strengths, GRAY}))
        self.images, self.steps, self.queries, self.restarts = images, steps, queries, restarts

    def cost(self, trained: TrainedMethod) -> Cost:
        by_pgd = Cost(*pgd_cost(self.steps, self.restarts)) + Cost(forwards=1)
        by_others = Cost(*square_cost(self.queries)) + Cost(forwards=3, gradients=1)
        once = by_pgd * 3 + Cost(forwards=3 + 2 * POINTS, gradients=2)
        return ((by_pgd + by_others) * len(self.strengths) + once) * trained.images(limit=self.images)

    def measure(self, trained: TrainedMethod) -> ProbeResult:
        models = trained.models()
        sizes = [model.images(self.images) for model in models]
        guesses = [n / len(task.classes) for n, task in zip(sizes, trained.tasks, strict=True)]
        chance = 100 * sum(guesses) / sum(sizes)
        clean = self._right(models, "clean", lambda _model, x, *_: x)
        attacks: dict[str, Attack] = {
            "FGSM": lambda model, x, y, ball, _rng: fgsm(model, x, y, ball),
            "PGD": self._pgd,
            "Square": lambda model, x, y, ball, rng: square(model, x, y, ball, queries=self.queries, rng=rng),
            "noise": lambda model, x, _y, ball, rng: noise(x, ball, model.bounds, rng),
        }
        curves = {
            name: torch.stack([self._right(models, name, attack, strength) for strength in self.strengths])
            for name, attack in attacks.items()
        }
        middle = _middle(curves["PGD"], clean, chance)
        checks = [
            *_curve_checks(curves, chance),
            *self._checks_at(models, self.strengths[middle], curves["PGD"][middle], chance),
            *self._gradient_checks(models),
            self._repeated(models),
        ]
        figures = {
            "verdict": worst(check.verdict for check in checks),
            "checks": [asdict(check) for check in checks],
            "middle": self.strengths[middle],
            **both_units([self.strengths[middle]], "pixels", trained.tasks),
            "curve": {
                "strengths": list(self.strengths),
                "images": len(clean),
                "chance": chance,
                "clean": accuracy(clean),
                **{
                    name: {"accuracy": [*map(accuracy, right)], "intervals": [*map(interval, right)]}
                    for name, right in curves.items()
                },
            },
        }
        arrays = {name: right.to(torch.uint8).contiguous() for name, right in {"clean": clean, **curves}.items()}
        headline = {f"masking {verdict}s": float(sum(c.verdict == verdict for c in checks)) for verdict in LEAST}
        return ProbeResult(figures, headline, arrays)

    def _pgd(self, model: Classifier, x: Tensor, y: Tensor, ball: Ball, rng: torch.Generator) -> Tensor:
        return pgd(model, x, y, ball, steps=self.steps, restarts=self.restarts, rng=rng)

    def _right(self, models: Sequence[TaskModel], purpose: str, attack: Attack, strength: float = 0.0) -> Tensor:
        """Whether each image of all tasks is still answered right (n,). Every strength has the same draws, so that
        it is compared with the others and not with its luck."""
        found, ball = [], Ball("linf", strength)
        for model in models:
            rng = generator(0, "masking", purpose, model.task)
            found += [model.right(attack(model, x, y, ball, rng), y) for x, y in model.batches(self.images)]
        return torch.cat(found).cpu()

    def _checks_at(
        self, models: Sequence[TaskModel], strength: float, right: Tensor, chance: float
    ) -> list[MaskingCheck]:
        """What takes other ways of PGD, at the strength where it leaves about half."""
        surrogates = [_surrogate(model) for model in models]

        def transferred(model: TaskModel, *batch: Any) -> Tensor:
            return self._pgd(ScaledLogits(surrogates[model.task]), *batch)

        def scaled(model: TaskModel, *batch: Any) -> Tensor:
            return self._pgd(ScaledLogits(model), *batch)

        return [
            _rivals("white box beats transfer", [(right, self._right(models, "PGD", transferred, strength))], chance),
            _rivals("loss scale", [(right, self._right(models, "PGD", scaled, strength))], chance),
            _another_seed(right, self._right(models, "PGD again", self._pgd, strength), chance),
        ]

    def _gradient_checks(self, models: Sequence[TaskModel]) -> list[MaskingCheck]:
        """Whether gradients are there, and whether the loss follows them."""
        vanished, foretold = 0, 0.0
        along, random = torch.zeros(2, POINTS + 1, dtype=torch.float64).unbind()
        for model in models:
            rng = generator(0, "masking", "walk", model.task)
            for x, y in model.batches(self.images):
                loss = partial(F.cross_entropy, target=y, reduction="none")
                logits, _, plain = model.input_gradient(x, loss)
                _, _, gradient = ScaledLogits(model).input_gradient(x, loss)
                vanished += int(_vanished(logits, plain, y).sum())
                along += _losses_along(model, x, y, gradient.sign(), logits)
                random += _losses_along(model, x, y, random_signs(x, x.shape, rng), logits)
                step = _point(model, x, gradient.sign(), 1) - x
                foretold += float((gradient * step).sum(dtype=torch.float64))
        share = 100 * vanished / sum(model.images(self.images) for model in models)
        ratio = float(along[1] - along[0]) / foretold if foretold > 0 else 0.0
        return [
            _check("gradients are there", share, "% gone", share <= 1, share <= 10),
            _check("first order holds", ratio, "× foretold", 0.5 <= ratio <= 2, 0.25 <= ratio <= 4),
            _smooth(along, random),
        ]

    def _repeated(self, models: Sequence[TaskModel]) -> MaskingCheck:
        """The largest difference between two forward passes of the same batch, in spreads of the logits."""
        off = 0.0
        for model in models:
            for x, _ in model.batches(self.images):
                first, second = model.logits(x), model.logits(x)
                off = max(off, float(((first - second).abs() / _spread(first)).max()))
        return _check("same answer twice", off, "", off == 0, off < 1e-5)


# ── checks ──────────────────────────────────────────────────────────────────────────────────────────────────


def _check(name: str, value: float, unit: str, passes: bool, tolerable: bool, chance: float = 0.0) -> MaskingCheck:
    """Fails where the value is not even tolerable."""
    verdict: Verdict = "pass" if passes else "warn" if tolerable else "fail"
    return MaskingCheck(name, verdict, value, unit, TEXTS[name][not passes].format(chance=chance))


def _rivals(name: str, pairs: Iterable[tuple[Tensor, Tensor]], chance: float) -> MaskingCheck:
    """The judged attack against a rival, once or at each strength; the worst comparison is reported."""
    pairs = list(pairs)
    tests = [sign_test(judged, rival) for judged, rival in pairs if accuracy(judged) > chance]
    graded = [(RANKS.index(test.verdict(len(pairs))), test.points) for test in tests]
    rank, points = max(graded, default=(0, 0.0))
    return _check(name, points, "points", rank == 0, rank == 1)


def _curve_checks(curves: Mapping[str, Tensor], chance: float) -> list[MaskingCheck]:
    """The checks that read the curves alone."""
    by_pgd = curves["PGD"]
    weaker = [by_pgd[: k + 1][int(by_pgd[: k + 1].sum(1).argmin())] for k in range(len(by_pgd) - 1)]
    gone = interval(by_pgd[-1])[0] <= chance
    return [
        _rivals("falls with strength", zip(by_pgd[1:], weaker, strict=True), chance),
        _check("nothing left at 0.5", accuracy(by_pgd[-1]), "%", gone, False, chance),
        _rivals("many steps beat one", zip(by_pgd, curves["FGSM"], strict=True), chance),
        _rivals("white box beats black box", zip(by_pgd, curves["Square"], strict=True), chance),
        _rivals("white box beats noise", zip(by_pgd, curves["noise"], strict=True), chance),
    ]


def _another_seed(right: Tensor, again: Tensor, chance: float) -> MaskingCheck:
    """Outside Wilson's interval of the first run is odd, unless neither leaves more than chance; intervals that do not
    even meet are a failure."""
    (low, high), (other_low, other_high) = interval(right), interval(again)
    one, other = accuracy(right), accuracy(again)
    inside, meeting = low <= other <= high or max(one, other) <= chance, other_low <= high and low <= other_high
    return _check("same under another seed", other - one, "points", inside, meeting)


def _smooth(along: Tensor, random: Tensor) -> MaskingCheck:
    own = _detour(along, float(along[-1] - along[0]))
    other = _detour(random, abs(float(random[-1] - random[0])))
    smooth = own <= min(0.5, max(0.1, other))  # where a random line is nothing but jags, half is jagged enough
    return _check("smooth uphill", 100 * own, "% detour", smooth, own <= 0.5)


def _detour(losses: Tensor, gained: float) -> float:
    """Of all the way that the loss goes up and down along a line, the share that gains nothing; all of it, where the
    loss falls or does not move."""
    way = float(losses.diff().abs().sum())
    return 1 - max(gained, 0.0) / way if way > 0 else 1.0


# ── numbers ─────────────────────────────────────────────────────────────────────────────────────────────────


def _spread(logits: Tensor) -> Tensor:
    """The deviation of each image's logits (n, 1)."""
    return logits.detach().std(dim=1, keepdim=True).clamp_min(torch.finfo(logits.dtype).tiny)


def _scaled(logits: Tensor) -> Tensor:
    return logits / _spread(logits)


def _vanished(logits: Tensor, gradient: Tensor, y: Tensor) -> Tensor:
    """Images whose gradient is zero by the pixels, or next to nothing already by the logits: batch norm may lend an
    image the gradient of others' losses while its own has none."""
    zero = ~gradient.flatten(1).any(1)
    wrong = torch.softmax(logits.double(), dim=1).scatter(1, y[:, None], 0).sum(1)  # what CE's gradient scales with
    return zero | (wrong <= VANISHED)


def _losses_along(model: TaskModel, x: Tensor, y: Tensor, direction: Tensor, start: Tensor) -> Tensor:
    """The total loss of the batch at each point of a line, logits divided by their spread at its start, where they are
    known. Totals, since batch norm may couple the images."""
    answers = [start, *(model.logits(_point(model, x, direction, point)) for point in range(1, POINTS + 1))]
    scaled = [(logits / _spread(start)).double() for logits in answers]
    return torch.stack([F.cross_entropy(logits, y, reduction="sum") for logits in scaled]).cpu()


def _point(model: TaskModel, x: Tensor, direction: Tensor, point: int) -> Tensor:
    return (x + REACH * point / POINTS * direction).clamp(*model.bounds)


def _surrogate(model: TaskModel) -> TaskModel:
    """The same method with each filter moved by 5 % of its length at random: about the same answers, by way of other
    gradients. It needs no second run, and is the same kind of surrogate for every method and at every stage."""
    rng = generator(0, "masking", "twin", model.task)
    drawn = {name: torch.randn(weight.shape, generator=rng).to(weight) for name, weight in model.weights.items()}
    found = TaskModel(model.method, model.task, model.split, space=model.space, progress=model.progress)
    found.weights = moved(model.weights, filter_normalized(drawn, model.weights), SURROGATE)
    return found


def _middle(by_pgd: Tensor, clean: Tensor, chance: float) -> int:
    """Where PGD leaves most nearly half of what is above chance; the strongest of equals, where it achieves nothing."""
    half = (accuracy(clean) + chance) / 2
    return max(range(len(by_pgd)), key=lambda k: (-abs(accuracy(by_pgd[k]) - half), k))
