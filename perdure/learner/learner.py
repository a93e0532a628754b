"""A deployed classifier: learn a task, know what it cost the old ones, answer, go back."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from perdure import registry
from perdure.data.arrays import mean_and_std
from perdure.data.images import list_folders
from perdure.errors import CorruptFile, PerdureError, UnknownName, WrongValue, expanded
from perdure.lab.tensor_file import WRONG, attributes_of, in_short, restore_method
from perdure.learner import gate, infer, source
from perdure.learner.build import (
    adopt_head,
    basis_sizes,
    build_method,
    build_network,
    build_plan,
    check_scale,
    check_shape,
    check_structure,
    resumed,
    structure_of,
)
from perdure.learner.gate import Check, GateLimits
from perdure.learner.membership import membership
from perdure.learner.state import MODEL, SavedLearner, SavedTask, StateDirectory, Verdict
from perdure.methods.gpm import GPM
from perdure.methods.method import Method
from perdure.nets.coverage import Coverage
from perdure.nets.wrap import Wrapped
from perdure.ops.capacity import first_full, forecast
from perdure.seeding import generator
from perdure.train.callbacks import Callback
from perdure.train.evaluate import Score, evaluate
from perdure.train.fit import fit
from perdure.train.plan import Plan
from perdure.types import Lesson, Part, Split, Task, cut

EXIT_CODES: dict[Verdict, int] = {"passed": 0, "broken": 1, "not verified": 3}
FREE = 0.05  # share of a layer's directions that a task needs to be learned at all


@dataclass(frozen=True)
class ReleaseReport:
    """What learning or checking came to."""

    verdict: Verdict
    revision: int  # in use afterwards
    task: str | None
    checks: list[Check]
    unverified: list[str]  # old tasks without test images
    valid_accuracy: float | None = None  # of the new task
    drift: dict[str, float] = field(default_factory=dict)  # old task → how far answers to noise have moved
    warnings: list[str] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.verdict]

    def plain(self) -> dict[str, Any]:
        return {**vars(self), "checks": [check.plain() for check in self.checks], "exit_code": self.exit_code}

    def __str__(self) -> str:
        lines = [str(check) for check in self.checks]
        if self.unverified:
            lines.append(f"not verified, for want of test images: {', '.join(self.unverified)}")
        for name, moved in self.drift.items():
            lines.append(f"{name}: answers to noise moved by {100 * moved:.0f} % (a stand-in, which overstates drift)")
        return "\n".join([*lines, *self.warnings, f"{self.verdict}; revision {self.revision} is in use"])


@dataclass(frozen=True)
class Answer:
    """What the model says of one image."""

    task: str | None  # None: of no task that it knows
    name: str | None
    probability: float
    probabilities: dict[str, float]
    revision: int


class Learner:
    """A classifier in a directory. Made by `create`, opened by `open`."""

    def __init__(
        self, state: StateDirectory, about: SavedLearner, method: Method, activations: dict[int, infer.Activations]
    ) -> None:
        self.state, self.about, self.method, self.activations = state, about, method, activations

    # ── beginning ───────────────────────────────────────────────────────────────────────────────────────────

    @classmethod
    def create(
        cls,
        path: str | Path,
        model: str | nn.Module,
        *,
        input: Sequence[int],
        method: str = "gpm",
        values: Mapping[str, Any] | None = None,
        plan: Plan | Mapping[str, Any] | None = None,
        classes: Sequence[str] | None = None,
        reference: Any = None,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        head: str | None = None,
        free: Sequence[str] = (),
        seed: int = 1,
    ) -> Self:
        """A new learner around a network, which is a module or the name of one.

        - `input` is the shape of its images (channels, height, width). Images of files are scaled to it.
        - `mean` and `std` normalize pixels of [0, 1] for all tasks, as a pretrained network wants it; left out, each
          task has its own, measured on its training images.
        - `classes` adopts the head that the model has as the first task, "start", with these names. Old images are
          not needed; `reference` images, with or without labels, protect it. Without any it is not protected, and
          the learner says so.
        - `method`, `values`, `plan`: how tasks are learned. `head`, `free`: as in `perdure.wrap`.
        """
        state = StateDirectory(expanded(path))
        if state.exists():
            raise WrongValue(f"{path}: a learner is there already; open it with Learner.open, or choose another place")
        shape = check_shape(input)
        given = build_network(model, shape, seed, head, keep_head=classes is not None, free=free)
        name = registry.networks.short_name(model) if isinstance(model, str) else None
        made = build_method(method, given, values or {})
        plan = build_plan(plan)
        network = {
            "name": name,
            "head": head,
            "keep_head": classes is not None,
            "free": list(free),
            "structure": structure_of(given),
        }
        fixed = {"mean": check_scale("mean", mean, shape), "std": check_scale("std", std, shape)}
        about: dict[str, Any] = {
            "parent": 0,
            "why": "create",
            "method": method,
            "values": dict(values or {}),
            "plan": plan.plain(),
            "network": network,
            "input": list(shape),
            **fixed,
            "tasks": [],
            "verdict": "passed",
        }
        activations: dict[int, infer.Activations] = {}
        if classes is not None:
            scale = fixed["mean"] or [0.0], fixed["std"] or [1.0]
            task, activations = adopt_head(made, list(classes), reference, shape, scale, seed)
            about["tasks"] = [task]
        with state.lock():
            state.commit(about, infer.with_activations(made, activations), attributes_of(made))
        return cls.open(path, model)

    @classmethod
    def open(cls, path: str | Path, model: str | nn.Module | None = None, *, revision: int | None = None) -> Self:
        """An existing learner. A network of the user's own must be given again, by name or as a module of the same
        structure; its weights become those that were saved."""
        state = StateDirectory(expanded(path))
        number = state.head().revision if revision is None else revision
        about = state.revision(number)
        shape = (about.input[0], about.input[1], about.input[2])
        saved = about.network
        if model is None:
            if saved.name is None or saved.name not in registry.networks:
                what = f"as {saved.name}" if saved.name else "as a module"
                raise WrongValue(
                    f"{path}: its network was given {what}, whose code is not kept; give it again (model=)"
                )
            model = saved.name
        net = build_network(model, shape, 1, saved.head, saved.keep_head, saved.free)
        check_structure(path, net, saved)
        method = build_method(about.method, net, about.values)
        tensors, remembered = state.tensors(number)
        activations, own = infer.split_activations(tensors)
        file = state.folder(number) / MODEL
        try:
            net.examine(torch.rand(2, *shape, generator=generator(0, "examine")))
            restore_method(method, own, remembered, shape)
            if len(net.heads) != len(about.tasks):
                raise ValueError(f"{len(net.heads)} heads, {len(about.tasks)} tasks")
            for task, head in zip(about.tasks, net.heads, strict=True):
                if not task.forgotten and head.out_features != len(task.classes):
                    raise ValueError(f"classes of {task.name}")
            infer.check_activations(activations, net, len(about.tasks))
        except WRONG as error:
            raise CorruptFile(f"{file}: does not fit its state ({in_short(error)})", file) from None
        method.eval()
        return cls(state, about, method, activations)

    # ── what it is ──────────────────────────────────────────────────────────────────────────────────────────

    @property
    def revision(self) -> int:
        return self.about.revision

    @property
    def shape(self) -> source.Shape:
        channels, height, width = self.about.input
        return channels, height, width

    @property
    def tasks(self) -> list[SavedTask]:
        """Those that it knows, in the order in which they were learned."""
        return [task for task in self.about.tasks if not task.forgotten]

    def coverage(self) -> Coverage:
        """What becomes of each parameter when the next task is learned."""
        assert self.method.net.coverage is not None
        return self.method.net.coverage

    def forecast(self, images: Any = None) -> dict[str, Any]:
        """How full each layer is, and how many more tasks fit, from the sizes of bases alone; with images of a next
        task, also how many directions these would take."""
        sizes = basis_sizes(self.method)
        layers = {name: {"held": held, "of": of, "free": 1 - held / of} for name, (held, of) in sizes.items()}
        found: dict[str, Any] = {"layers": layers, "tasks_left": None, "first_full": None, "trend": None}
        history = [task.basis for task in self.about.tasks if task.basis]
        if len(history) >= 2:
            shares = {name: [after[name][0] / after[name][1] for after in history if name in after] for name in sizes}
            said = forecast({name: row for name, row in shares.items() if len(row) == len(history)}, FREE)
            layer, left = first_full(said.left[said.trend])
            found |= {"tasks_left": left, "first_full": layer, "trend": said.trend}
        if images is not None and isinstance(self.method, GPM):
            x = source.read_unlabeled(images, self.shape)
            with torch.no_grad():
                probe = deepcopy(self.method)
                part = Split(x, torch.zeros(len(x), dtype=torch.int64), *self._scale(x))
                lesson = Lesson(len(self.about.tasks), (Part(0, 1, part, part),))
                probe.end(lesson)
            for name, (held, _) in basis_sizes(probe).items():
                layers[name]["wanted"] = held - layers[name]["held"]
        return found

    def revisions(self) -> list[SavedLearner]:
        """All that can be gone back to, the oldest first."""
        return [self.state.revision(number) for number in self.state.numbers()]

    def held(self) -> dict[str, Any]:
        """Every tensor and file: kind, bytes, whether it holds pixels or tells who was trained on."""
        from perdure.learner.held import held

        return held(self)

    def card(self) -> str:
        """The model as a page of Markdown."""
        from perdure.learner.held import card

        return card(self)

    def export(self, path: str | Path, task: str | None = None) -> dict[str, Any]:
        """Write FILE.onnx or FILE.pt2 of one task or of all."""
        from perdure.learner.export import export

        return export(self, path, task)

    # ── answers ─────────────────────────────────────────────────────────────────────────────────────────────

    def predict(self, images: Any, task: str | None = None, batch: int = 64) -> list[Answer]:
        """The class of each image: a path, a list of paths, a folder of images, arrays or PIL images.

        Without a task the likeliest is taken, or none, where an image is unlike all: see `card` for how often that is
        right."""
        x = source.read_unlabeled(images, self.shape)
        if not self.tasks:
            raise WrongValue("nothing has been learned yet; learn a task first")
        numbers = self._infer_tasks(x, batch) if task is None else [self._number(task)] * len(x)
        answers: list[Answer | None] = [None] * len(x)
        for number in sorted(set(numbers)):
            rows = [row for row, found in enumerate(numbers) if found == number]
            if number < 0:
                for row in rows:
                    answers[row] = Answer(None, None, 0.0, {}, self.revision)
                continue
            known = self.about.tasks[number]
            for row, probabilities in zip(rows, self._probabilities(x[rows], number, batch).tolist(), strict=True):
                by_name = dict(zip(known.classes, probabilities, strict=True))
                best = max(by_name, key=lambda name: by_name[name])
                answers[row] = Answer(known.name, best, by_name[best], by_name, self.revision)
        return [answer for answer in answers if answer is not None]

    def evaluate(self, task: str, data: Any) -> Score:
        """Loss and accuracy on labeled images."""
        number = self._number(task)
        return evaluate(self.method, source.read_test_images(task, data, self.shape, self.about.tasks[number]), number)

    def check(self, tests: Any = None, limits: Any = None) -> ReleaseReport:
        """Compare this revision with the one that it came from, on test images of old tasks: {task: images}, or a
        folder with one folder per task."""
        rules = GateLimits.read(limits)
        parent = self.about.parent
        if not parent:
            said = "there is no revision before this one to compare with"
            return ReleaseReport(self.about.verdict, self.revision, None, [], [], warnings=[said])
        before = self._opened(parent)
        old = [task.name for task in before.tasks if task.name in {known.name for known in self.tasks}]
        checks, unverified = self._gate(before.method, self.method, self._tests(tests, rules), rules, old)
        return ReleaseReport(gate.verdict(checks, unverified, rules), self.revision, None, checks, unverified)

    # ── learning ────────────────────────────────────────────────────────────────────────────────────────────

    def learn(
        self,
        name: str,
        data: Any,
        *,
        test: Any = None,
        tests: Any = None,
        limits: Any = None,
        seed: int = 1,
        plan: Plan | Mapping[str, Any] | None = None,
        callback: Callback | None = None,
    ) -> ReleaseReport:
        """Learn a new task, check what it cost the old ones, and only then make it the revision in use.

        - `data`: FOLDER/class/image.jpg, a pair (images, labels), a Dataset or a DataLoader; pixels, not normalized.
        - `tests`: test images of old tasks, as in `check`; the file of limits may name them, too.
        - `test`: test images of the new task, by which it is measured how well tasks are told apart.
        - A broken limit leaves everything as it was. Without test images the verdict is *not verified*.
        """
        if any(task.name == name for task in self.tasks):
            raise WrongValue(f"task {name!r} is known; extend it with more images, or give the new one another name")
        if not name or len(name) > 500 or name != name.strip():
            raise WrongValue(f"{name!r} cannot be the name of a task; give one of 1 to 500 letters")
        task = source.make_task(name, data, self.shape, seed=seed, mean=self.about.mean, std=self.about.std)
        number = len(self.about.tasks)
        about = {
            "name": name,
            "classes": list(task.classes),
            "mean": list(task.train.mean),
            "std": list(task.train.std),
            "images": len(task.train),
            "protected": bool(self.method.protects),
        }
        return self._learned(f"learn {name}", number, task, about, test, tests, limits, seed, plan, callback)

    def extend(
        self,
        name: str,
        data: Any,
        *,
        tests: Any = None,
        limits: Any = None,
        seed: int = 1,
        plan: Plan | Mapping[str, Any] | None = None,
        callback: Callback | None = None,
    ) -> ReleaseReport:
        """More images of a known task and its classes: its head goes on learning, and the network as far as no task's
        inputs are touched, its own included."""
        if self.method.begins_each_task:
            raise WrongValue(f"{self.about.method} cannot extend a task; learn the images as a task of their own")
        number = self._number(name)
        known = self.about.tasks[number]
        task = source.make_task(
            name, data, self.shape, seed=seed, classes=known.classes, mean=known.mean, std=known.std
        )
        about = known.model_dump() | {"images": known.images + len(task.train)}
        return self._learned(f"extend {name}", number, task, about, None, tests, limits, seed, plan, callback)

    def _learned(
        self,
        why: str,
        number: int,
        task: Task,
        about: dict[str, Any],
        test: Any,
        tests: Any,
        limits: Any,
        seed: int,
        plan: Plan | Mapping[str, Any] | None,
        callback: Callback | None,
    ) -> ReleaseReport:
        rules = GateLimits.read(limits)
        how = Plan(**self.about.plan) if plan is None else build_plan(plan, self.about.plan)
        with self.state.lock():
            self._check_current()
            old = [known.name for known in self.tasks]
            found = self._tests(tests, rules)
            after = deepcopy(self.method)
            device = next(after.parameters()).device
            task = task.to(device)
            lesson = Lesson(number, (Part(number, len(task.classes), task.train, task.valid),))
            known = number < len(after.net.heads)
            fit(after, lesson, how, seed, callback, resumed(after, number, how) if known else None)
            valid = evaluate(after, task.valid, number)
            checks, unverified = self._gate(self.method, after, found, rules, old)
            verdict = gate.verdict(checks, unverified, rules)
            drift = {name: self._drift(after, name) for name in old}
            warnings = _warnings(after)
            if verdict == "broken":
                return ReleaseReport(
                    verdict, self.revision, task.name, checks, unverified, valid.accuracy, drift,
                    [*warnings, "a limit is broken: nothing was changed"],
                )  # fmt: skip
            activations = {**self.activations, number: infer.activation_statistics(after, number, task.train)}
            far = infer.distances(after, task.valid, number, activations[number])
            about |= {
                "revision": self.state.head().latest + 1,
                "valid_accuracy": valid.accuracy,
                "basis": {name: list(size) for name, size in basis_sizes(after).items()},
                "membership": membership(after, lesson, seed),
                "threshold": infer.threshold(far),
            }
            entries = [entry.model_dump() for entry in self.about.tasks]
            entries[number:] = [about, *entries[number + 1 :]]
            if test is not None:
                found[task.name] = source.read_test_images(task.name, test, self.shape, SavedTask.model_validate(about))
            content = self._content(why, tasks=entries, verdict=verdict, checks=[check.plain() for check in checks])
            content["inference"] = infer.inference_accuracy(after, activations, entries, found) or content["inference"]
            self.state.commit(content, infer.with_activations(after, activations), attributes_of(after))
        self._reload()
        return ReleaseReport(verdict, self.revision, task.name, checks, unverified, valid.accuracy, drift, warnings)

    # ── going back, and forgetting ──────────────────────────────────────────────────────────────────────────

    def rollback(self, to: int) -> None:
        """Use an earlier, or a later, revision again. Its files are those that were written then."""
        with self.state.lock():
            if to not in self.state.numbers():
                raise UnknownName("revision", str(to), map(str, self.state.numbers()))
            self.state.revision(to)
            self.state.point_to(to)
        self._reload()

    def forget(self, name: str) -> list[str]:
        """Remove what is held of a task alone: its head, classes and statistics, here and in all earlier revisions,
        which are deleted. Returns what cannot be removed, a line each."""
        number = self._number(name)
        with self.state.lock():
            self._check_current()
            after = deepcopy(self.method)
            classes = len(self.about.tasks[number].classes)
            with torch.no_grad():
                for parameter in after.net.heads[number].parameters():
                    parameter.zero_()
            for of, buffer in [parts for parts, _ in after.net.statistics.by_parts()]:
                if of == str(number):
                    after.net.statistics[number, buffer] = torch.zeros_like(after.net.statistics[number, buffer])
            activations = {task: kept for task, kept in self.activations.items() if task != number}
            entries = [entry.model_dump() for entry in self.about.tasks]
            entries[number] |= {
                "name": f"forgotten {number}", "classes": ["forgotten"] * classes, "forgotten": True,
                "mean": [0.0], "std": [1.0], "images": 0, "membership": {}, "threshold": None, "valid_accuracy": None,
            }  # fmt: skip
            # the revision before goes, too, so that nothing is left to compare with
            content = self._content(
                "forget", parent=0, tasks=entries, verdict="not verified", checks=[], inference=None
            )
            old = self.state.numbers()
            self.state.commit(content, infer.with_activations(after, activations), attributes_of(after))
            self.state.remove(old)
        self._reload()
        kept = ["weights of the network: what the task taught them cannot be told from the rest"]
        if basis_sizes(after):
            kept.append("directions in the bases: they protect other tasks, too, and tell what its inputs looked like")
        return kept

    # ── parts ───────────────────────────────────────────────────────────────────────────────────────────────

    def _content(self, why: str, **new: Any) -> dict[str, Any]:
        """What the next revision says, but for what is new."""
        same = self.about.model_dump(by_alias=True)
        for name in ("schema", "check", "revision", "made", "files"):
            same.pop(name, None)
        return {**same, "parent": self.revision, "why": why, **new}

    def _check_current(self) -> None:
        if (now := self.state.head().revision) != self.revision:
            raise PerdureError(
                f"{self.state.path}: revision {now} is in use by now, and this is {self.revision}; open it again"
            )

    def _opened(self, revision: int) -> "Learner":
        """Another revision of it, in a network of its own."""
        return Learner.open(self.state.path, self._fresh(), revision=revision)

    def _fresh(self) -> str | nn.Module:
        backbone = deepcopy(self.method.net.backbone)
        return backbone.model if isinstance(backbone, Wrapped) else backbone

    def _reload(self) -> None:
        found = Learner.open(self.state.path, self._fresh())
        self.about, self.method, self.activations = found.about, found.method, found.activations

    def _number(self, task: str) -> int:
        names = {known.name: number for number, known in enumerate(self.about.tasks) if not known.forgotten}
        if task not in names:
            raise UnknownName("task", task, names)
        return names[task]

    def _scale(self, x: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
        if self.about.mean is not None and self.about.std is not None:
            return tuple(self.about.mean), tuple(self.about.std)
        return mean_and_std(x)

    def _split(self, x: Tensor, number: int) -> Split:
        known = self.about.tasks[number]
        return Split(x, torch.zeros(len(x), dtype=torch.int64), tuple(known.mean), tuple(known.std))

    @torch.no_grad()
    def _probabilities(self, x: Tensor, number: int, batch: int) -> Tensor:
        self.method.eval()
        weights = self.method.weights(number)
        split = self._split(x.to(next(self.method.parameters()).device), number)
        logits = [self.method.forward(split.take(rows)[0], number, weights).logits for rows in cut(len(x), batch)]
        return torch.cat(logits).softmax(1).cpu()

    def _infer_tasks(self, x: Tensor, batch: int) -> list[int]:
        known = [
            number for number, task in enumerate(self.about.tasks) if not task.forgotten and number in self.activations
        ]
        if not known:
            raise WrongValue(
                "no task's activation statistics are known, so it cannot be told which an image is of; name the task"
            )
        far = [infer.distances(self.method, self._split(x, t), t, self.activations[t], batch) for t in known]
        thresholds = [self.about.tasks[number].threshold for number in known]
        found = infer.nearest_task(torch.stack(far, 1), thresholds)
        return [known[place] if place >= 0 else -1 for place in found]

    def _tests(self, tests: Any, rules: GateLimits) -> dict[str, Split]:
        """Test images of known tasks, from what was given and from the limits."""
        given: dict[str, Any] = dict(rules.tests)
        if isinstance(tests, str | Path):
            place = expanded(tests)
            if not place.is_dir():
                raise WrongValue(f"{place}: there is no such folder; give one with a folder of test images per task")
            given |= {folder.name: folder for folder in list_folders(place)}
        elif isinstance(tests, Mapping):
            given |= tests
        elif tests is not None:
            raise WrongValue("tests: give {task: images}, or a folder with one folder per task")
        known = {task.name: task for task in self.tasks}
        if strange := [name for name in given if name not in known]:
            raise UnknownName("task with test images", strange[0], known)
        return {name: source.read_test_images(name, data, self.shape, known[name]) for name, data in given.items()}

    def _gate(
        self, before: Method, after: Method, tests: Mapping[str, Split], rules: GateLimits, old: Sequence[str]
    ) -> tuple[list[Check], list[str]]:
        checks: list[Check] = []
        for name in old:
            if name in tests:
                number, split = self._number(name), tests[name]
                was, now = (gate.answers(method, number, split, rules) for method in (before, after))
                checks += gate.compare(name, was, now, rules)
        return checks, [name for name in old if name not in tests]

    @torch.no_grad()
    def _drift(self, after: Method, name: str) -> float:
        """How far answers to noise have moved, relative to their length."""
        number, rng = self._number(name), generator(0, "drift")
        device = next(after.parameters()).device
        x = torch.randn(32, *self.shape, generator=rng).to(device)
        answers = []
        for method in (self.method, after):
            method.eval()
            answers.append(method.forward(x, number).logits)
        before, now = answers
        return float((now - before).norm() / before.norm().clamp(min=1e-12))


def _warnings(method: Method) -> list[str]:
    """What a user should know of what was just learned."""
    found = []
    if not method.protects:
        found.append(f"{type(method).__name__} protects no layer: old answers move")
    full = [name for name, (held, of) in basis_sizes(method).items() if held > (1 - FREE) * of]
    if full:
        found.append(f"full, so that little more can be learned there: {', '.join(full[:5])}")
    return found
