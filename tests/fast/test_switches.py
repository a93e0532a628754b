"""Each path can be switched off by its name, and then is not taken."""

import ctypes
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from perdure import fast
from perdure.errors import UnknownName
from perdure.fast import dropout, lazy, mixed_images
from perdure.nets.network import Network
from perdure.ops import gradients, subspace

from .steps import METHODS, NETS, assert_same, calls_of, gradient, lesson, on_a_later_task

# Path → a method and a network that take it, and the function that is called only on this path.
TAKEN: dict[str, tuple[str, str, Any, str]] = {
    "project_inputs": ("gpm", "alexnet", gradients, "_accumulate"),
    "low_rank": ("dfgp", "alexnet", lazy.PerturbedWeight, "linear"),
    "joint_batches": ("rcl", "alexnet", Network, "_joint"),
    "mixed_images": ("rcl, paper", "resnet18", mixed_images._FirstConvolution, "apply"),
    "rescale_inputs": ("trgp", "mlp", lazy.RescaledWeight, "linear"),
    "pooling": ("gpm", "alexnet", dropout._DropPool, "apply"),
    "gram": ("gpm", "alexnet", subspace, "_outside_by_gram"),
}


def test_names_switch_off_and_on_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PERDURE_PLAIN", raising=False)
    assert all(fast.on(name) for name in fast.PATHS)
    with fast.without("gram"):
        with fast.without("joint_batches"):
            assert fast.off() == {"gram", "joint_batches"}
        assert fast.off() == {"gram"}
    assert not fast.off()
    monkeypatch.setenv("PERDURE_PLAIN", "low_rank, gram")
    assert fast.off() == {"gram", "low_rank"}
    with fast.without("pooling"):
        assert fast.off() == {"gram", "low_rank", "pooling"}
    monkeypatch.setenv("PERDURE_PLAIN", "all")
    assert fast.off() == fast.PATHS.keys()
    monkeypatch.setenv("PERDURE_PLAIN", "grm")
    with pytest.raises(UnknownName, match="did you mean gram"):
        fast.on("gram")


def test_every_path_is_tested_here() -> None:
    assert TAKEN.keys() | {"dropout_masks", "channels_last", "heap"} == fast.PATHS.keys()


@pytest.mark.parametrize("path", TAKEN)
def test_each_path_is_taken_unless_left_out_alone(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    method, net, owner, name = TAKEN[path]
    monkeypatch.setattr(lazy.LowRankGrad, "worth", lambda _: True)  # so narrow a network is not worth it
    with calls_of(owner, name) as taken:
        quick = gradient(method, net)
    with fast.without(path), calls_of(owner, name) as left_out:
        plain = gradient(method, net)
    assert len(taken) > 0
    assert len(left_out) == 0
    assert_same(quick, plain)


def test_dropout_masks_are_drawn_the_quick_way_unless_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The masks of one step, used again in another that draws none of them."""
    masks: list[Tensor] = []
    random_mask = dropout.random_mask

    def recorded(like: Tensor, rate: float) -> Tensor:
        masks.append(random_mask(like, rate))
        return masks[-1].clone()

    def step(*off: str) -> dict[str, Tensor]:
        with fast.without(*off):
            torch.manual_seed(5)
            method = METHODS["gpm"](Network(NETS["alexnet, dropout"]()))
            method.net.add_head(3)
            return method.double().train().gradient(lesson(0).sample(12))

    with calls_of(dropout.np.random, "SFC64") as taken:
        monkeypatch.setattr(dropout, "random_mask", recorded)
        quick = step()
        assert len(taken) == len(masks) == 5
        again = iter(masks.copy())
        monkeypatch.setattr(F, "dropout", lambda x, rate: x * next(again) / (1 - rate))
        assert_same(quick, step("dropout_masks", "pooling"))
        assert next(again, None) is None
        with fast.without("dropout_masks"):
            random_mask(torch.ones(8), 0.5)
        assert len(taken) == 5


def test_channels_come_last_unless_left_out() -> None:
    def last(net: Network) -> bool:
        weight = net.get_parameter("backbone.conv2.weight")
        return weight.is_contiguous(memory_format=torch.channels_last) and not weight.is_contiguous()

    assert last(Network(NETS["alexnet"]()))
    with fast.without("channels_last"):
        assert not last(Network(NETS["alexnet"]()))
        plain = gradient("rcl", "alexnet")
    assert_same(gradient("rcl", "alexnet"), plain)


def test_the_heap_is_kept_unless_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []
    library = SimpleNamespace(mallopt=lambda *pair: asked.append(pair))
    monkeypatch.setattr(ctypes, "CDLL", lambda _: library)
    with fast.without("heap"):
        fast.keep_heap()
    assert not asked
    fast.keep_heap()
    assert dict(asked) == {-4: 0, -1: 2**31 - 1, -2: 1 << 28, -8: 1}


@pytest.mark.parametrize("library", [lambda _: SimpleNamespace(), lambda _: ctypes.cdll.LoadLibrary("no such library")])
def test_another_c_library_does_no_harm(library: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", library)
    fast.keep_heap()


def test_a_later_task_is_what_the_steps_are_about() -> None:
    """Otherwise nothing would be projected, rescaled or replayed in them."""
    torch.manual_seed(5)
    trgp = on_a_later_task(METHODS["trgp"](Network(NETS["mlp"]())))
    assert len(trgp.live) > 0  # type: ignore[arg-type]
    torch.manual_seed(5)
    fsdgpm = on_a_later_task(METHODS["fsdgpm"](Network(NETS["mlp"]())))
    assert fsdgpm.replay.held > 0  # type: ignore[union-attr]
    assert len(fsdgpm.memory) > 0  # type: ignore[arg-type]
