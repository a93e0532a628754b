"""The Fisher's diagonal and its springs; the numbers of the public code are in tests/golden."""

import torch

from perdure.ops.fisher import add_ewc_gradient, diagonal_fisher, merge


def test_fisher_of_what_no_batch_used_is_left_out() -> None:
    one, other = {"a": torch.ones(2)}, {"a": torch.ones(2), "b": torch.tensor([2.0])}
    found = diagonal_fisher(iter([one, other]), batch=4, samples=8)
    assert found["a"].tolist() == [1.0, 1.0]
    assert found["b"].tolist() == [2.0]
    assert diagonal_fisher([], batch=4, samples=8) == {}


def test_merging_one_by_one_is_the_mean() -> None:
    fishers = [{"w": torch.rand(3, dtype=torch.float64), f"head{task}": torch.ones(1)} for task in range(5)]
    merged: dict[str, torch.Tensor] = {}
    for task, new in enumerate(fishers):
        merged = merge(merged, new, task)
    torch.testing.assert_close(merged["w"], torch.stack([new["w"] for new in fishers]).mean(0))
    for task in range(5):
        torch.testing.assert_close(merged[f"head{task}"], torch.tensor([1 / 5]))


def test_a_spring_pulls_back_in_proportion() -> None:
    weights = {"w": torch.tensor([1.0, 5.0]), "free": torch.ones(1)}
    anchor, fisher = {"w": torch.tensor([0.0, 5.0])}, {"w": torch.tensor([3.0, 7.0])}
    found = add_ewc_gradient({"free": torch.ones(1)}, weights, anchor, fisher, 10.0)
    assert {name: g.tolist() for name, g in found.items()} == {"free": [1.0], "w": [30.0, 0.0]}
    assert add_ewc_gradient({}, weights, {}, {}, 10.0) == {}
