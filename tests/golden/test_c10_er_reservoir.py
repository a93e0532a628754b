"""c10: which items of a stream a reservoir holds, with the recipe's draws."""

from collections.abc import Callable

import pytest
import torch

from perdure.memory.replay_buffer import ReservoirBuffer, reservoir_slot
from perdure.types import Batch

from .golden import RECIPE, Case, stream

CAPACITY, LENGTH = RECIPE["c10"]["reservoir_capacity"], RECIPE["c10"]["reservoir_stream"]


def draws() -> Callable[[int], int]:
    rs = stream(102)
    return lambda n: int(rs.randint(0, n))


def fill(draw: Callable[[int], int], late: int = 0) -> list[int]:
    """`late` makes the draw reach further than the items seen: a slip."""
    slots: dict[int, int] = {}
    for item in range(LENGTH):
        slot = reservoir_slot(item, CAPACITY, lambda n: draw(n + late))
        if slot is not None:
            slots[slot] = item
    return [slots[slot] for slot in sorted(slots)]


def test_rule() -> None:
    case = Case("c10_er_reservoir")
    assert case.names("") == {"memory_item_ids", "capacity", "stream_length"}
    assert (int(case["capacity"]), int(case["stream_length"])) == (CAPACITY, LENGTH)
    assert fill(draws()) == case["memory_item_ids"].tolist()


@pytest.mark.parametrize("size", [1, 3, 7, LENGTH])
def test_memory(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same whatever the batches: also where it gets full, or a slot is taken twice, inside of one."""
    draw = draws()
    monkeypatch.setattr("perdure.memory.replay_buffer._draw", draw)
    memory = ReservoirBuffer(CAPACITY)
    for items in torch.arange(LENGTH).split(size):
        memory.add(Batch(items.double().view(-1, 1, 1, 1), items % 3, items % 2))
    kept = Case("c10_er_reservoir")["memory_item_ids"].tolist()
    assert memory["x"].flatten().tolist() == kept
    assert memory["y"].tolist() == [item % 3 for item in kept]
    assert memory["task"].tolist() == [item % 2 for item in kept]
    assert int(memory["seen"]) == LENGTH


def test_other_rules_are_told_apart() -> None:
    """A draw over one item more than there are, over one less, and items that only fill up."""
    kept = Case("c10_er_reservoir")["memory_item_ids"].tolist()
    assert fill(draws(), late=1) != kept
    assert fill(draws(), late=-1) != kept
    assert kept != list(range(CAPACITY))
