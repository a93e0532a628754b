"""How many threads a run has where nobody has said."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import perdure
from perdure.errors import WrongValue
from perdure.lab.threads import forward_work, usual_threads
from perdure.nets.alexnet import AlexNet, SlimAlexNet
from perdure.nets.network import Network

SHAPE = (3, 32, 32)
QUICK: dict[str, Any] = {"tasks": 1, "plan": {"epochs": 1}, "pictures": False}


@pytest.fixture(autouse=True)
def two_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Torch's own number is two, whatever machine this is."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_work_is_multiply_adds_of_a_batch() -> None:
    # 29² · 64 · 48 + 12² · 128 · 576 + 5² · 256 · 512 + 1024 · 2048 + 2048² by hand
    assert forward_work(Network(AlexNet(SHAPE)), SHAPE, 10) == 10 * (
        29**2 * 64 * 48 + 12**2 * 128 * 576 + 5**2 * 256 * 512 + 1024 * 2048 + 2048**2
    )


def test_work_of_groups_and_of_what_is_used_twice() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.grouped = nn.Conv2d(4, 4, 3, groups=2, padding=1)
            self.back = nn.ConvTranspose2d(4, 2, 2, stride=2)

        def forward(self, x: Tensor) -> Tensor:
            return self.back(self.grouped(self.grouped(x))).flatten(1)

    net = perdure.wrap(Twice(), (4, 6, 6))
    assert forward_work(net, (4, 6, 6), 3) == 3 * (2 * 36 * 4 * 2 * 9 + 36 * 4 * 2 * 4)


def test_small_networks_have_one_thread_and_large_ones_all() -> None:
    assert usual_threads(Network(SlimAlexNet(SHAPE)), SHAPE, 64) == 1
    assert usual_threads(Network(AlexNet(SHAPE)), SHAPE, 64) == 2
    assert usual_threads(Network(AlexNet(SHAPE)), SHAPE, 4) == 1


def test_the_users_number_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert usual_threads(Network(SlimAlexNet(SHAPE)), SHAPE, 64) == 2


def test_counting_changes_nothing() -> None:
    class Normed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.drop, self.flat = nn.BatchNorm2d(3), nn.Dropout(0.5), nn.Flatten()

        def forward(self, x: Tensor) -> Tensor:
            return self.flat(self.drop(self.norm(x)))

    net = perdure.wrap(nn.Sequential(Normed(), nn.Linear(3 * 32 * 32, 4)), SHAPE)
    net.train()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    generator = torch.get_rng_state()
    assert forward_work(net, SHAPE, 1) > 0
    assert torch.equal(torch.get_rng_state(), generator)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert all(part.training for part in net.backbone.modules())


def test_images_that_a_network_cannot_take_are_said_where_it_learns() -> None:
    assert forward_work(Network(SlimAlexNet(SHAPE)), (1, 32, 32), 64) == float("inf")


def test_a_run_has_one_thread_and_says_so(tmp_path: Path) -> None:
    record = perdure.run("gpm", "synthetic", out=tmp_path, **QUICK)
    assert record["threads"] == 1
    assert torch.get_num_threads() == 2
    perdure.probe("fgsm", record["path"], out=tmp_path, pictures=False)
    assert json.loads(Path(record["path"], "probes", "fgsm.json").read_text())["threads"] == 1


def test_threads_may_be_given(tmp_path: Path) -> None:
    record = perdure.run("gpm", "synthetic", out=tmp_path, threads=2, **QUICK)
    assert record["threads"] == 2
    with pytest.raises(WrongValue, match="threads=-1 is not allowed; use a whole number from 1 to 1024"):
        perdure.run("gpm", "synthetic", out=tmp_path, threads=-1, **QUICK)
