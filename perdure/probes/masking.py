"""Is it real? A battery that tells robustness from gradients that are merely hidden.

A network may withstand attacks because its answers are stable, or because its gradients lead attacks astray: saturated,
zero, shattered or random ones. The second kind falls to the next attack. What gives it away was collected by Athalye et
al. (ICML 2018) and Carlini et al. (2019): one step beats many, black box beats white box, more room does not help, and
so on. Each sign is a check here. None proves robustness; a failed one says that figures under attack are too high.

It is a battery of quick tests on few images, made to be run beside a measurement of robustness and not in its place.

Attacks are compared on the same images in the same batches, by an exact one-sided sign test over the images on which
they disagree; where a check compares at several strengths, p is multiplied by their number (Bonferroni). Batch norm may
couple the images of a batch, so p is approximate: a difference counts only if it has size, too. And it counts only
while more than chance is left of the accuracy, for where nothing is left no attack can be said to fail.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from perdure.errors import WrongValue
from perdure.ops.attacks import Ball, Victim, fgsm, fgsm_takes, noise, pgd, pgd_takes, square, square_takes
from perdure.ops.landscape import filter_normalized
from perdure.ops.metrics import wilson
from perdure.probes.probe import Measured, Probe, Sight, Subject, Work
from perdure.probes.robustness import both_units
from perdure.probes.verdicts import LEAST, RANKS, Check, Verdict, edge, verdict_of, worst
from perdure.schema import Count
from perdure.seeding import generator

STRENGTHS = (1 / 255, 2 / 255, 4 / 255, 8 / 255, 16 / 255, 32 / 255, 64 / 255, 127.5 / 255)
GRAY = 0.5  # at this strength any image can be made the same gray: nothing is left to see
VANISHED = 1e-12  # of the gradient by the logits that a wrong answer has
POINTS, REACH = 8, 1 / 255  # of the walk uphill; the first step is what the gradient must foretell
TWIN = 0.05  # of each filter's length

Craft = Callable[[Sight, Tensor, Tensor, torch.Generator], Tensor]


class Tempered:
    """The same answers with each image's logits divided by their own spread. Cross-entropy then has a slope however
    large the logits are, while its plain slope fades to nothing where the network is sure."""

    def __init__(self, victim: Victim) -> None:
        self.victim = victim

    @property
    def bounds(self) -> tuple[float, float]:
        return self.victim.bounds

    def logits(self, x: Tensor) -> Tensor:
        return _tempered(self.victim.logits(x))

    def slope(self, x: Tensor, loss: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        logits, each, slope = self.victim.slope(x, lambda logits: loss(_tempered(logits)))
        return _tempered(logits), each, slope


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
        self.images = images
        self.steps = steps
        self.queries = queries
        self.restarts = restarts

    def work(self, subject: Subject) -> Work:
        look = Work(looks=1)
        many = Work(*pgd_takes(self.steps, self.restarts)) + look
        one, black = Work(*fgsm_takes()) + look, Work(*square_takes(self.queries)) + look
        curve = (one + many + black + look) * len(self.strengths)
        once = look + many * 3 + Work(slopes=2) + look * (2 * POINTS) + look * 2
        return (curve + once) * subject.images(limit=self.images)

    def measure(self, subject: Subject) -> Measured:
        sights = [subject.sight(task) for task in range(len(subject.tasks))]
        chance = self._chance(subject)
        clean = self._right(sights, lambda _sight, x, _y, _chance: x, "clean")
        curves = {
            name: torch.stack([self._right(sights, craft(Ball("linf", size)), name) for size in self.strengths])
            for name, craft in self._attacks().items()
        }
        middle = _middle(curves["PGD"], clean, chance)
        checks = [
            *_compared(curves, chance),
            *self._at(sights, self.strengths[middle], curves["PGD"][middle], chance),
            *self._slopes(sights),
            self._repeated(sights),
        ]
        figures = {
            "verdict": worst(check.verdict for check in checks),
            "checks": [asdict(check) for check in checks],
            "middle": self.strengths[middle],
            **both_units([self.strengths[middle]], "pixels", subject.tasks),
            "curve": {
                "strengths": list(self.strengths),
                "images": len(clean),
                "chance": chance,
                "clean": _accuracy(clean),
                **{name: _curve(right) for name, right in curves.items()},
            },
        }
        arrays = {name: right.to(torch.uint8).contiguous() for name, right in {"clean": clean, **curves}.items()}
        headline = {f"masking {verdict}s": float(sum(c.verdict == verdict for c in checks)) for verdict in LEAST}
        return Measured(figures, headline, arrays)

    def _chance(self, subject: Subject) -> float:
        """Percent right by guessing, over the images of all tasks."""
        counts = [min(self.images, len(task.test)) for task in subject.tasks]
        return 100 * sum(n / len(t.classes) for n, t in zip(counts, subject.tasks, strict=True)) / sum(counts)

    def _attacks(self) -> Mapping[str, Callable[[Ball], Craft]]:
        return {
            "FGSM": lambda ball: lambda sight, x, y, _chance: fgsm(sight, x, y, ball),
            "PGD": lambda ball: lambda sight, x, y, chance: self._pgd(sight, x, y, ball, chance),
            "Square": lambda ball: (
                lambda sight, x, y, chance: square(sight, x, y, ball, queries=self.queries, chance=chance)
            ),
            "noise": lambda ball: lambda sight, x, _y, chance: noise(x, ball, sight.bounds, chance),
        }

    def _pgd(self, victim: Victim, x: Tensor, y: Tensor, ball: Ball, chance: torch.Generator) -> Tensor:
        return pgd(victim, x, y, ball, steps=self.steps, restarts=self.restarts, chance=chance)

    def _right(self, sights: Sequence[Sight], craft: Craft, purpose: str) -> Tensor:
        """Whether each image of all tasks is still answered right (n,). Every strength has the same draws, so that
        it is compared with the others and not with its luck."""
        found = []
        for sight in sights:
            chance = generator(0, "masking", purpose, sight.task)
            for x, y in sight.batches(self.images):
                found.append(sight.logits(craft(sight, x, y, chance)).argmax(1) == y)
        return torch.cat(found).cpu()

    def _at(self, sights: Sequence[Sight], strength: float, right: Tensor, chance: float) -> list[Check]:
        """What takes other crafts of PGD, at the strength where it leaves about half."""
        ball = Ball("linf", strength)
        twins = {sight.task: _twin(sight) for sight in sights}
        tempered = self._right(sights, lambda s, x, y, c: self._pgd(Tempered(s), x, y, ball, c), "PGD")
        moved = self._right(sights, lambda s, x, y, c: self._pgd(Tempered(twins[s.task]), x, y, ball, c), "PGD")
        again = self._right(sights, lambda s, x, y, c: self._pgd(s, x, y, ball, c), "PGD again")
        return [
            _rivals(
                "white box beats transfer",
                [(right, moved)],
                chance,
                "what is crafted on a twin with other gradients (weights off by 5 %) does less",
                "what is crafted on a twin (weights off by 5 %, logits divided) does more than the network's own slope",
            ),
            _rivals(
                "loss scale",
                [(right, tempered)],
                chance,
                "dividing the logits by their spread makes PGD no stronger",
                "PGD grows stronger with the logits divided: a saturated softmax hides the slope",
            ),
            _another_seed(right, again, chance),
        ]

    def _slopes(self, sights: Sequence[Sight]) -> list[Check]:
        vanished, foretold = 0, 0.0
        uphill, random = torch.zeros(2, POINTS + 1, dtype=torch.float64).unbind()
        for sight in sights:
            chance = generator(0, "masking", "walk", sight.task)
            for x, y in sight.batches(self.images):
                plain = _Slope.of(sight, x, y)
                tempered = _Slope.of(Tempered(sight), x, y)
                vanished += int(_vanished(plain, y).sum())
                uphill += _walk(sight, x, y, tempered.slope.sign(), plain.logits)
                random += _walk(sight, x, y, _signs(x, chance), plain.logits)
                step = _moved(sight, x, tempered.slope.sign(), 1) - x
                foretold += float((tempered.slope * step).sum(dtype=torch.float64))
        risen = float(uphill[1] - uphill[0])
        share = 100 * vanished / sum(sight.images(self.images) for sight in sights)
        return [_gradients(share), _first_order(risen, foretold), _smooth(uphill, random)]

    def _repeated(self, sights: Sequence[Sight]) -> Check:
        """The largest difference between two looks at the same batch, in spreads of the logits."""
        off = 0.0
        for sight in sights:
            for x, _ in sight.batches(self.images):
                first, second = sight.logits(x), sight.logits(x)
                off = max(off, float(((first - second).abs() / _spread(first)).max()))
        return Check(
            "same answer twice",
            "pass" if off == 0 else "warn" if off < 1e-5 else "fail",
            off,
            "",
            "two looks at a batch give the same logits bit for bit"
            if off == 0
            else "answers differ from look to look: attacks must average over chance",
        )


# ── checks ──────────────────────────────────────────────────────────────────────────────────────────────────


def _compared(curves: Mapping[str, Tensor], chance: float) -> list[Check]:
    """The checks that read the curves alone."""
    strong = curves["PGD"]
    weaker = [strong[: k + 1][int(strong[: k + 1].sum(1).argmin())] for k in range(len(strong) - 1)]
    return [
        _rivals(
            "falls with strength",
            list(zip(strong[1:], weaker, strict=True)),
            chance,
            "with more room PGD never leaves more right answers",
            "with more room PGD leaves more right answers: it loses its way",
        ),
        _nothing_left(strong[-1], chance),
        _rivals(
            "many steps beat one",
            list(zip(strong, curves["FGSM"], strict=True)),
            chance,
            "PGD is at least as strong as FGSM at each strength",
            "FGSM is stronger than PGD: the slope misleads after the first step",
        ),
        _rivals(
            "white box beats black box",
            list(zip(strong, curves["Square"], strict=True)),
            chance,
            "PGD is at least as strong as Square, which sees no gradients",
            "Square, which sees no gradients, is stronger than PGD: gradients mislead",
        ),
        _rivals(
            "white box beats noise",
            list(zip(strong, curves["noise"], strict=True)),
            chance,
            "PGD is at least as strong as random noise",
            "random noise is stronger than PGD: gradients are worth nothing",
        ),
    ]


def _rivals(name: str, pairs: Sequence[tuple[Tensor, Tensor]], chance: float, good: str, bad: str) -> Check:
    """The judged attack against a rival, once or at each strength; the worst comparison is what is told."""
    edges = [edge(judged, rival) for judged, rival in pairs if _accuracy(judged) > chance]
    graded = [(RANKS.index(verdict_of(found, len(pairs))), found.points) for found in edges]
    rank, points = max(graded, default=(0, 0.0))
    return Check(name, RANKS[rank], points, "points", good if rank == 0 else bad)


def _nothing_left(right: Tensor, chance: float) -> Check:
    left = _accuracy(right)
    lower, _ = wilson(int(right.sum()), len(right))
    verdict: Verdict = "pass" if lower <= chance else "fail"
    return Check(
        "nothing left at 0.5",
        verdict,
        left,
        "%",
        f"where all images may turn gray, PGD leaves {'no more' if verdict == 'pass' else 'more'} than chance "
        f"({chance:.0f} %, by Wilson's interval)",
    )


def _another_seed(right: Tensor, again: Tensor, chance: float) -> Check:
    """Outside Wilson's interval of the first run is odd, unless neither leaves more than chance; intervals that do not
    even meet are a failure."""
    (low, high), (other_low, other_high) = (wilson(int(r.sum()), len(r)) for r in (right, again))
    inside = low <= _accuracy(again) <= high or max(_accuracy(right), _accuracy(again)) <= chance
    meeting = other_low <= high and low <= other_high
    return Check(
        "same under another seed",
        "pass" if inside else "warn" if meeting else "fail",
        _accuracy(again) - _accuracy(right),
        "points",
        "PGD from other starts leaves about as much (Wilson's interval)"
        if inside
        else "PGD from other starts leaves something else: give it restarts",
    )


def _gradients(share: float) -> Check:
    return Check(
        "gradients are there",
        "pass" if share <= 1 else "warn" if share <= 10 else "fail",
        share,
        "% gone",
        "nearly every image has a slope to follow"
        if share <= 1
        else "images without a slope (zero, or below 1e-12 of a wrong answer's) cannot be attacked along it",
    )


def _first_order(risen: float, foretold: float) -> Check:
    ratio = risen / foretold if foretold > 0 else 0.0
    good = 0.5 <= ratio <= 2
    return Check(
        "first order holds",
        "pass" if good else "warn" if 0.25 <= ratio <= 4 else "fail",
        ratio,
        "× foretold",
        f"a step of {255 * REACH / POINTS:g}/255 raises the loss "
        f"{'about as far as' if good else 'not nearly as'} the gradient foretells",
    )


def _smooth(uphill: Tensor, random: Tensor) -> Check:
    own = _detour(uphill, float(uphill[-1] - uphill[0]))
    other = _detour(random, abs(float(random[-1] - random[0])))
    smooth = own <= min(0.5, max(0.1, other))  # where a random line is nothing but jags, half is jagged enough
    return Check(
        "smooth uphill",
        "pass" if smooth else "warn" if own <= 0.5 else "fail",
        100 * own,
        "% detour",
        f"the loss climbs along the gradient as far as {255 * REACH:g}/255, "
        f"{'no more jagged than along a random line' if smooth else 'but in jags, or not at all'}",
    )


def _detour(heights: Tensor, gained: float) -> float:
    """Of all the way that the loss goes up and down along a line, the share that gains nothing; all of it, where the
    loss falls or does not move."""
    way = float(heights.diff().abs().sum())
    return 1 - max(gained, 0.0) / way if way > 0 else 1.0


# ── numbers ─────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class _Slope:
    logits: Tensor
    slope: Tensor

    @classmethod
    def of(cls, victim: Victim, x: Tensor, y: Tensor) -> "_Slope":
        logits, _, slope = victim.slope(x, lambda logits: F.cross_entropy(logits, y, reduction="none"))
        return cls(logits, slope)


def _spread(logits: Tensor) -> Tensor:
    """The deviation of each image's logits (n, 1)."""
    return logits.detach().std(dim=1, keepdim=True).clamp_min(torch.finfo(logits.dtype).tiny)


def _tempered(logits: Tensor) -> Tensor:
    return logits / _spread(logits)


def _vanished(plain: _Slope, y: Tensor) -> Tensor:
    """Images whose slope is zero by the pixels, or next to nothing already by the logits: batch norm may lend an image
    the slope of others' losses while its own has none."""
    zero = ~plain.slope.flatten(1).any(1)
    wrong = torch.softmax(plain.logits.double(), dim=1).scatter(1, y[:, None], 0).sum(1)  # what CE's slope scales with
    return zero | (wrong <= VANISHED)


def _walk(sight: Sight, x: Tensor, y: Tensor, way: Tensor, start: Tensor) -> Tensor:
    """The total loss of the batch at each point of a line, logits divided by their spread at its start, where they are
    known. Totals, since batch norm may couple the images."""
    answers = [start, *(sight.logits(_moved(sight, x, way, point)) for point in range(1, POINTS + 1))]
    scaled = [(logits / _spread(start)).double() for logits in answers]
    return torch.stack([F.cross_entropy(logits, y, reduction="sum") for logits in scaled]).cpu()


def _moved(sight: Sight, x: Tensor, way: Tensor, point: int) -> Tensor:
    return (x + REACH * point / POINTS * way).clamp(*sight.bounds)


def _signs(x: Tensor, chance: torch.Generator) -> Tensor:
    return torch.randint(2, x.shape, generator=chance).to(x) * 2 - 1


def _twin(sight: Sight) -> Sight:
    """The same method with each filter moved by 5 % of its length at random: about the same answers, by way of other
    gradients. It needs no second run, and is the same kind of twin for every method and at every stage."""
    chance = generator(0, "masking", "twin", sight.task)
    drawn = {name: torch.randn(weight.shape, generator=chance).to(weight) for name, weight in sight.weights.items()}
    twin = Sight(sight.method, sight.task, sight.split, space=sight.space, meter=sight.meter)
    shift = filter_normalized(drawn, sight.weights)
    twin.weights = {**sight.weights, **{name: sight.weights[name] + TWIN * part for name, part in shift.items()}}
    return twin


def _middle(strong: Tensor, clean: Tensor, chance: float) -> int:
    """Where PGD leaves most nearly half of what is above chance; the strongest of equals, where it achieves nothing."""
    half = (_accuracy(clean) + chance) / 2
    return max(range(len(strong)), key=lambda k: (-abs(_accuracy(strong[k]) - half), k))


def _accuracy(right: Tensor) -> float:
    return 100 * int(right.sum()) / len(right)


def _curve(right: Tensor) -> dict[str, Any]:
    return {
        "accuracy": [_accuracy(row) for row in right],
        "intervals": [list(wilson(int(row.sum()), len(row))) for row in right],
    }
