"""Interrupted at any moment and taken up again, a run ends bit for bit as one that was left alone."""

import random
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from perdure import fast, registry
from perdure.lab.checkpoint import load, read_epochs
from perdure.lab.run import run_spec
from perdure.lab.spec import spec
from perdure.nets.alexnet import AlexNet
from perdure.train import guard
from perdure.train.callbacks import Callback

METHODS = list(registry.methods)
LOAD = registry.Entry.load
# Enough of everything: two lessons of two epochs, four batches each, momentum and best weights in play.
PLAN = {"epochs": 2, "momentum": 0.5, "keep": "best"}
SMALL = {"network": "mlp", "settings": {"size": 8}}


class PulledPlug(BaseException):
    """Nothing in the code expects it."""


class Plug(Callback):
    """Pulls the plug at the n-th moment between two steps, or right after a lesson."""

    def __init__(self, moment):
        self.left = moment

    def on_step(self, _now):
        self.left -= 1
        if self.left == 0:
            raise PulledPlug

    def on_task_end(self, _method, _learned):
        self.on_step(None)


class Count(Callback):
    def __init__(self):
        self.moments = 0

    def on_step(self, _now):
        self.moments += 1

    def on_task_end(self, _method, _learned):
        self.moments += 1


def wanted(method):
    return spec(method, "synthetic", tasks=2, plan=PLAN, **SMALL)


def outcome(record, plan):
    saved = load(Path(record["path"], "model.safetensors"), plan)
    lines = read_epochs(Path(record["path"]) / "epochs.jsonl")
    timeless = {
        name: value
        for name, value in record.items()
        if name
        not in ("seconds", "evaluation_seconds", "finished", "path", "already_done", "files", "check", "versions")
    }
    epochs = [(epoch.lesson, epoch.epoch, epoch.rate, epoch.valid, epoch.train, epoch.best) for epoch in lines]
    return saved.state, timeless, epochs


def same(one, other):
    assert one[1:] == other[1:]
    assert set(one[0]) == set(other[0])
    return all(torch.equal(one[0][name], other[0][name]) for name in one[0])


OFTEN = {"ewc", "er", "trgp", "api", "rcl"}  # each with memory of another kind


@pytest.mark.parametrize(
    "method", [name if name in OFTEN else pytest.param(name, marks=pytest.mark.thorough) for name in METHODS]
)
def test_interrupted_at_random_moments(method, tmp_path):
    asked = wanted(method)
    count = Count()
    whole = outcome(run_spec(asked, out=tmp_path / "whole", callback=count), asked.plan)
    chance = random.Random(method)
    for attempt in range(2 if method == "rcl" else 1):
        out, kills = tmp_path / str(attempt), 0
        while True:
            # Saved every step, or only now and then, so that several steps are taken twice.
            try:
                record = run_spec(
                    asked, out=out, callback=Plug(chance.randint(1, count.moments)), every=chance.choice([0, 1e9])
                )
                break
            except PulledPlug:
                kills += 1
            assert kills < 50
        assert same(outcome(record, asked.plan), whole)
        assert not (Path(record["path"]) / "checkpoint").exists()


ADAMW = {
    "epochs": 3,
    "optimizer": "adamw",
    "rate": 0.002,
    "weight_decay": 0.1,
    "schedule": "cosine",
    "warmup": 1,
    "augment": "flip+crop",
}
OTHERS = {
    "adamw": ADAMW,
    "plateau": {**ADAMW, "schedule": "plateau", "patience": 1},
    "steps": {**ADAMW, "schedule": "steps", "milestones": "2"},
    "reset": {**PLAN, "epochs": 4, "schedule": "linear", "momentum": 0.9, "reset_momentum": True},
    "sgd": {**PLAN, "nesterov": True, "weight_decay": 0.01, "schedule": "constant", "augment": "crop"},
}


@pytest.mark.parametrize("method", ["finetune", "er", "pat"])
def test_attacks_replayed_attacks_and_what_the_guard_has_done_resume(method, tmp_path, monkeypatch):
    """The guard sees a collapse in the second epoch of each lesson."""

    def accuracy(learner, _lesson, _strength, steps):
        return 90.0 if steps == learner.attack_steps_now else 10.0 if learner.robust_best > 50 else 60.0

    monkeypatch.setattr(guard, "accuracy_under_attack", accuracy)
    values = {"attack": "8/255"} | ({"memory": 20, "replay_batch": 8} if method == "er" else {})
    asked = spec(method, "synthetic", tasks=2, values=values, plan={**PLAN, "augment": "flip"}, **SMALL)
    record = run_spec(asked, out=tmp_path / "whole")
    assert [text[:15] for text in record["cautions"]] == ["task 1, epoch 2", "task 2, epoch 2"]
    whole = outcome(record, asked.plan)
    for moment in (2, 6, 9, 11, 13):  # within the first lesson, then just after a collapse, then in the second one
        out = tmp_path / str(moment)
        with pytest.raises(PulledPlug):
            run_spec(asked, out=out, callback=Plug(moment), every=0)
        assert same(outcome(run_spec(asked, out=out), asked.plan), whole), moment


@pytest.mark.parametrize("method", ["gpm", "er"])
def test_noise_and_replayed_noise_resume(method, tmp_path):
    values = {"noise": 0.1} | ({"memory": 20, "replay_batch": 8} if method == "er" else {})
    asked = spec(method, "synthetic", tasks=2, values=values, plan=PLAN, **SMALL)
    whole = outcome(run_spec(asked, out=tmp_path / "whole"), asked.plan)
    for moment in (2, 9):  # within the first lesson and the second
        with pytest.raises(PulledPlug):
            run_spec(asked, out=tmp_path / "broken", callback=Plug(moment), every=0)
    assert same(outcome(run_spec(asked, out=tmp_path / "broken"), asked.plan), whole)


@pytest.mark.parametrize(("method", "plan"), [("er", "adamw"), *(("gpm", name) for name in OTHERS)])
def test_every_optimizer_schedule_and_augmentation_resumes(method, plan, tmp_path):
    asked = spec(method, "synthetic", tasks=2, plan=OTHERS[plan], **SMALL)
    whole = outcome(run_spec(asked, out=tmp_path / "whole"), asked.plan)
    for moment in (2, 6, 5, 9):  # within epochs and between, in both tasks
        with pytest.raises(PulledPlug):
            run_spec(asked, out=tmp_path / "broken", callback=Plug(moment), every=0)
    assert same(outcome(run_spec(asked, out=tmp_path / "broken"), asked.plan), whole)


@pytest.mark.parametrize(("plan", "kinds"), [(PLAN, {"momentum"}), (ADAMW, {"momentum", "squares", "steps"})])
def test_what_an_optimizer_remembers_is_kept_by_kind(plan, kinds, tmp_path):
    """Momentum where it always was, so that older checkpoints are read."""
    asked = spec("finetune", "synthetic", tasks=2, plan=plan, **SMALL)
    with pytest.raises(PulledPlug):
        run_spec(asked, out=tmp_path, callback=Plug(3), every=0)
    file = max(tmp_path.rglob("*.safetensors"))
    with safe_open(file, framework="pt") as held:
        assert {name.partition("/")[0] for name in held.keys()} >= kinds  # noqa: SIM118
        groups = {name.partition("/")[0] for name in held.keys() if "/" in name}  # noqa: SIM118
    assert groups - {"best_weights", "generators"} == kinds
    state = load(file, asked.plan).fit_state
    assert {kind for kind, found in state.optimizer.items() if found} == kinds
    assert {int(count) for count in state.optimizer["steps"].values()} <= {2, 3}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    asked = wanted("rcl")
    return outcome(run_spec(asked, out=tmp_path_factory.mktemp("whole")), asked.plan)


# An epoch has six steps and the moment after it; a lesson two epochs, and its end.
@pytest.mark.parametrize("moment", [1, 6, 7, 8, 13, 14, 15, 16])
def test_interrupted_at_every_kind_of_moment(moment, whole, tmp_path):
    asked = wanted("rcl")
    with pytest.raises(PulledPlug):
        run_spec(asked, out=tmp_path, callback=Plug(moment), every=0)
    assert same(outcome(run_spec(asked, out=tmp_path), asked.plan), whole)


def test_the_comparison_can_fail(tmp_path):
    asked, other = wanted("gpm"), spec("gpm", "synthetic", tasks=2, seed=2, plan=PLAN, **SMALL)
    one, two = (outcome(run_spec(which, out=tmp_path), which.plan) for which in (asked, other))
    assert not all(torch.equal(one[0][name], two[0][name]) for name in one[0])


class Dropping(AlexNet):
    """Narrow, with dropout."""

    def __init__(self, shape):
        super().__init__(shape, filters=(8, 8, 8), units=(32, 32))


@pytest.mark.thorough
@pytest.mark.parametrize("way", ["fast", "plain", "bf16"])
def test_masks_and_fast_paths_resume_too(way, tmp_path, monkeypatch):
    """The generator of the masks is part of what is saved; so is what it feeds, with all fast paths and with none."""
    monkeypatch.setattr(
        registry.Entry, "load", lambda self: Dropping if self.where.endswith(":AlexNet") else LOAD(self)
    )
    asked = spec(
        "rcl",
        "synthetic",
        tasks=2,
        network="alexnet",
        settings={"size": 20, "per_class": 16},
        plan={**PLAN, **({"precision": "bf16"} if way == "bf16" else {})},
        values={"features": "separate"},
    )
    with fast.without("all" if way == "plain" else ""):
        whole = outcome(run_spec(asked, out=tmp_path / "whole"), asked.plan)
        for moment in (3, 12):
            with pytest.raises(PulledPlug):
                run_spec(asked, out=tmp_path / "broken", callback=Plug(moment), every=0)
        assert same(outcome(run_spec(asked, out=tmp_path / "broken"), asked.plan), whole)
