"""Plans: what they refuse, what they leave unsaid, and their schedules."""

import math
from dataclasses import asdict
from typing import Any

import pytest
import torch

from perdure.errors import UnknownName, WrongValue
from perdure.schema import checked, values_of
from perdure.train.plan import ADDED, Plan
from perdure.train.schedules import Constant, Plateau, Schedule, Steps, Warmup, set_state


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"nesterov": True}, "nesterov=true needs momentum"),
        ({"optimizer": "adamw", "momentum": 0.9}, "with optimizer=adamw, set momentum=0"),
        ({"optimizer": "adamw", "nesterov": True}, "momentum and nesterov are of sgd"),
        ({"milestones": (3,)}, "milestones are of schedule=steps, not plateau"),
        ({"schedule": "steps", "epochs": 10, "milestones": (5, 10)}, "before the end .10."),
        ({"schedule": "steps", "epochs": 10, "milestones": (2, 5), "warmup": 2}, "after the warmup .2."),
        ({"epochs": 3, "warmup": 3}, "warmup=3 leaves nothing of 3 epochs"),
        ({"augment": "flip+corp"}, "unknown augmentation 'corp'; did you mean crop"),
    ],
)
def test_what_means_nothing_together_is_refused_in_one_line(given: dict[str, Any], message: str) -> None:
    with pytest.raises((WrongValue, UnknownName), match=message) as caught:
        Plan(**given)
    assert "\n" not in str(caught.value)


def test_every_option_says_what_it_means() -> None:
    assert all(value.about and value.allowed for value in values_of(Plan).values())


def test_text_is_read() -> None:
    given = {"milestones": "5,8", "nesterov": "true", "warmup": "1", "augment": "none", "weight_decay": "1e-4"}
    read = checked("the plan", Plan, given)
    assert read == {"milestones": (5, 8), "nesterov": True, "warmup": 1, "augment": "none", "weight_decay": 1e-4}
    assert checked("the plan", Plan, {"milestones": "5"}) == {"milestones": (5,)}


def test_what_came_later_is_left_out_at_its_default() -> None:
    """Or all earlier runs would have other names."""
    assert set(Plan().plain()) == set(asdict(Plan())) - set(ADDED)
    changed = Plan(optimizer="adamw", weight_decay=0.1, schedule="steps", milestones=(3,), warmup=1, augment="flip")
    assert set(changed.plain()) == set(asdict(changed)) - {"nesterov", "reset_momentum", "statistics", "valid_order"}
    assert Plan(**changed.plain()) == changed


def test_a_function_has_no_name_to_file_a_run_under() -> None:
    with pytest.raises(WrongValue, match="a run is filed under names"):
        Plan(augment=torch.flip).plain()


def rates(plan: Plan, losses: list[float] | None = None) -> list[float]:
    schedule, found = plan.schedule_for_lesson(), []
    for loss in losses or [1.0 / (1 + epoch) for epoch in range(plan.epochs)]:
        found.append(schedule.rate)
        schedule.see(loss)
    return found


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"schedule": "constant"}, [1, 1, 1, 1]),
        ({"schedule": "linear"}, [1, 0.75, 0.5, 0.25]),
        ({"schedule": "cosine"}, [1, (1 + math.sqrt(0.5)) / 2, 0.5, (1 - math.sqrt(0.5)) / 2]),
        ({"schedule": "steps"}, [1, 1, 0.5, 0.25]),  # at half and at three quarters
        ({"schedule": "steps", "factor": 10, "milestones": (1,)}, [1, 0.1, 0.1, 0.1]),
        ({"schedule": "constant", "warmup": 1}, [0.5, 1, 1, 1]),
        ({"schedule": "constant", "warmup": 3}, [0.25, 0.5, 0.75, 1]),
        ({"schedule": "linear", "warmup": 2}, [1 / 3, 2 / 3, 1, 0.5]),
        ({"schedule": "cosine", "warmup": 2}, [1 / 3, 2 / 3, 1, 0.5]),
        ({"schedule": "steps", "warmup": 1, "milestones": (2, 3)}, [0.5, 1, 0.5, 0.25]),  # counted from the start
        ({"schedule": "plateau", "warmup": 2}, [1 / 3, 2 / 3, 1, 1]),
    ],
    ids=str,
)
def test_rates_of_four_epochs(given: dict[str, Any], expected: list[float]) -> None:
    assert rates(Plan(rate=1.0, epochs=4, **given)) == pytest.approx(expected)


def test_one_epoch_is_learned_at_the_full_rate_whatever_the_schedule() -> None:
    for schedule in ("plateau", "linear", "cosine", "steps", "constant"):
        assert rates(Plan(rate=0.3, epochs=1, schedule=schedule)) == [0.3]


def test_steps_halve_the_rate_unless_told_otherwise() -> None:
    schedule = Steps(0.8, epochs=3, milestones=(1, 2))
    rates = [schedule.rate]
    for _ in range(2):
        schedule.see(1.0)
        rates.append(schedule.rate)
    assert rates == [0.8, 0.4, 0.2]


def test_a_plateau_waits_for_the_warmup_but_the_best_epoch_may_lie_in_it() -> None:
    plan = Plan(rate=1.0, epochs=9, patience=2, warmup=3)
    schedule = plan.schedule_for_lesson()
    assert [schedule.see(loss) for loss in (0.5, 1.0, 0.5)] == [True, False, False]
    assert schedule.rate == 1.0
    assert [schedule.see(loss) for loss in (0.6, 0.4, 0.5)] == [False, True, False]
    assert schedule.rate == 1.0
    assert not schedule.see(0.5)
    assert (schedule.rate, schedule.stopped) == (0.5, False)
    for _ in range(40):
        schedule.see(0.5)
    assert schedule.stopped


@pytest.mark.parametrize("warmup", [0, 3])
@pytest.mark.parametrize("schedule", ["plateau", "linear", "cosine", "steps", "constant"])
def test_a_schedule_goes_on_from_its_state(schedule: Any, warmup: int) -> None:
    plan = Plan(rate=1.0, epochs=8, schedule=schedule, patience=2, warmup=warmup)
    losses = [1.0, 0.9, 1.1, 1.2, 1.3, 0.8, 1.0, 1.0]
    whole: Schedule = plan.schedule_for_lesson()
    for done, loss in enumerate(losses):
        again = plan.schedule_for_lesson()
        set_state(again, asdict(whole))  # type: ignore[call-overload]
        assert (again.rate, again.stopped) == (whole.rate, whole.stopped), done
        assert again.see(loss) == whole.see(loss)
        assert asdict(again) == asdict(whole)  # type: ignore[call-overload]


def test_a_state_of_before_there_was_a_warmup_is_read() -> None:
    state = {"rate": 0.1, "factor": 2, "patience": 6, "floor": 1e-5, "best": 0.7, "waited": 3, "stopped": False}
    schedule = Plan().schedule_for_lesson()
    set_state(schedule, state)
    assert schedule == Plateau(0.1, 2, 6, 1e-5, 0.7, 3)


def test_over_other_epochs_warmup_and_milestones_keep_their_shares() -> None:
    plan = Plan(epochs=20, warmup=4, schedule="steps", milestones=(10, 16))
    assert plan.lasting(10) == Plan(epochs=10, warmup=2, schedule="steps", milestones=(5, 8))
    assert plan.lasting(40) == Plan(epochs=40, warmup=8, schedule="steps", milestones=(20, 32))
    assert plan.lasting(2) == Plan(epochs=2, schedule="steps", milestones=(1,))
    assert plan.lasting(1) == Plan(epochs=1, schedule="steps")
    assert Plan(epochs=2, warmup=1).lasting(1) == Plan(epochs=1)


def test_a_lower_rate_is_one_that_can_work() -> None:
    assert Plan(rate=1e9).lower_rate() == 0.01
    assert Plan(rate=0.02).lower_rate() == pytest.approx(0.004)
    assert Plan(rate=1.0, optimizer="adamw").lower_rate() == 0.001


def test_how_far_the_rate_has_fallen_on_its_way_to_the_end() -> None:
    """Of nine drops that leave it above the floor; with the tenth it stops."""
    plan = Plan(rate=0.01, factor=2, patience=1, floor=1e-5, warmup=1)
    schedule = plan.schedule_for_lesson()
    schedule.see(1.0)
    found = [schedule.fallen(plan.rate)]
    while not schedule.stopped:
        schedule.see(2.0)
        found.append(schedule.fallen(plan.rate))
    assert found == pytest.approx([drop / 9 for drop in range(10)] + [1])
    assert Plan(rate=8, floor=1, factor=2).schedule_for_lesson().fallen(32) == pytest.approx(2 / 5)
    for other in ({"floor": 0}, {"factor": 0.5}, {"floor": 0.02}, {"floor": 0.008}, {"schedule": "linear"}):
        assert Plan(rate=0.01, **other).schedule_for_lesson().fallen(0.01) == 0  # type: ignore[arg-type]


def test_defaults_are_those_of_the_projection_papers_on_cifar100() -> None:
    plan = Plan()
    assert (plan.rate, plan.epochs, plan.batch, plan.schedule) == (0.01, 200, 64, "plateau")
    assert (plan.factor, plan.patience, plan.floor) == (2.0, 6, 1e-5)


def test_schedules_begin_at_the_beginning() -> None:
    constant = Constant(0.1, 4)
    assert (constant.seen, constant.best, constant.stopped) == (0, math.inf, False)
    assert Warmup(constant, 1).rate == 0.05


def test_what_a_plan_is_where_nothing_is_said() -> None:
    """The papers' schedule on CIFAR-100 (reference: GPM's code), and nothing of what they do not use."""
    papers = {"rate": 0.01, "epochs": 200, "batch": 64, "schedule": "plateau", "factor": 2.0, "patience": 6}
    papers |= {"floor": 1e-5, "keep": "best", "optimizer": "sgd", "momentum": 0.0, "weight_decay": 0.0}
    unused = {"milestones": (), "warmup": 0, "nesterov": False, "reset_momentum": False, "augment": "none"}
    unused |= {"precision": "float32", "statistics": "batch", "train_scores": False, "valid_order": "fixed"}
    assert vars(Plan()) == papers | unused
