"""Augmentation: what it does to images, and who sees it."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from perdure.errors import UnknownName, WrongValue
from perdure.methods.agem import AGEM
from perdure.methods.er import ER
from perdure.methods.finetune import FineTune
from perdure.methods.fsdgpm import FSDGPM
from perdure.methods.method import Method
from perdure.methods.mtl import MTL
from perdure.nets.network import Network
from perdure.train.augment import MARGIN, crop, flip, resolve
from perdure.train.fit import fit
from perdure.train.learn import learn
from perdure.train.plan import Plan
from perdure.types import Batch, Gradient, Lesson, Stream

PLAN = Plan(rate=0.02, epochs=2, batch=16, schedule="linear", keep="last")


def images(n: int = 64, height: int = 6, width: int = 9) -> Tensor:
    return torch.rand(n, 3, height, width, generator=torch.Generator().manual_seed(0)) * 0.9 + 0.1


def test_each_image_is_mirrored_or_not() -> None:
    torch.manual_seed(0)
    before = images()
    after = flip(before)
    mirrored = [torch.equal(a, b.flip(2)) for a, b in zip(after, before, strict=True)]
    same = [torch.equal(a, b) for a, b in zip(after, before, strict=True)]
    assert all(m != s for m, s in zip(mirrored, same, strict=True))
    assert 20 < sum(mirrored) < 44


@pytest.mark.parametrize("size", [(6, 9), (2, 3), (32, 32)])
def test_each_image_is_moved_by_a_few_pixels(size: tuple[int, int]) -> None:
    torch.manual_seed(0)
    before = images(200, *size)
    after, (height, width), seen = crop(before), size, set()
    assert after.shape == before.shape
    for old, new in zip(before, after, strict=True):
        padded = torch.zeros(3, height + 2 * MARGIN, width + 2 * MARGIN)
        padded[:, MARGIN : MARGIN + height, MARGIN : MARGIN + width] = old
        places = [
            (top, left)
            for top in range(2 * MARGIN + 1)
            for left in range(2 * MARGIN + 1)
            if torch.equal(padded[:, top : top + height, left : left + width], new)
        ]
        assert places
        seen |= set(places) if len(places) == 1 else set()
    assert {top for top, _ in seen} >= set(range(2, 2 * MARGIN - 1)) if height > 2 else True
    assert {left for _, left in seen} >= set(range(2, 2 * MARGIN - 1)) if height > 2 else True


def test_names_are_joined_in_order_and_draw_from_the_global_generator() -> None:
    both = resolve(Plan(augment=" flip + crop"))
    assert both is not None
    torch.manual_seed(3)
    expected = crop(flip(images()))
    torch.manual_seed(3)
    assert torch.equal(both(images()), expected)
    assert resolve(Plan()) is None
    with pytest.raises(UnknownName, match=r"unknown augmentation 'rotate' \(all: crop, flip, none\)"):
        Plan(augment="flip+rotate")


def test_a_function_of_ones_own_is_checked() -> None:
    darker = resolve(Plan(augment=lambda pixels: pixels / 2))
    assert darker is not None
    assert torch.equal(darker(images()), images() / 2)
    for wrong in (lambda pixels: pixels[1:], lambda pixels: pixels.double(), lambda _: None):
        found = resolve(Plan(augment=wrong))
        assert found is not None
        with pytest.raises(WrongValue, match="it has to keep their shape and type"):
            found(images())


class Spy(FineTune):
    def __init__(self, net: Network) -> None:
        super().__init__(net)
        self.seen: list[Batch] = []

    def gradient(self, batch: Batch) -> Gradient:
        self.seen.append(batch)
        return super().gradient(batch)


def dark(pixels: Tensor) -> Tensor:
    return torch.zeros_like(pixels)


def test_it_sees_pixels_of_training_images_and_of_no_others(fresh_net: Callable[[], Network], stream: Stream) -> None:
    """Before they are normalized; neither validation nor test images, nor those that bases are made of."""
    seen: list[Tensor] = []

    def look(pixels: Tensor) -> Tensor:
        seen.append(pixels.clone())
        return dark(pixels)

    tasks = [replace(t, train=replace(t.train, mean=(0.5,) * 3, std=(0.25,) * 3)) for t in stream]
    method = Spy(fresh_net())
    learn(method, tasks[:1], replace(PLAN, augment=look))
    found = torch.cat(seen)
    assert len(found) == 2 * len(tasks[0].train)
    train = tasks[0].train.pixels(slice(None))
    assert torch.equal(found.sum((1, 2, 3)).sort().values, train.repeat(2, 1, 1, 1).sum((1, 2, 3)).sort().values)
    assert 0 <= float(found.min()) <= float(found.max()) <= 1
    assert all(torch.equal(batch.x, torch.full_like(batch.x, -2.0)) for batch in method.seen)  # (0 − ½)/¼
    lesson = next(iter(method.lessons(tasks)))
    assert not torch.equal(lesson.sample(5).x, torch.full((5, 3, 32, 32), -2.0))


def test_no_augmentation_draws_nothing_and_its_draws_repeat(fresh_net: Callable[[], Network], stream: Stream) -> None:
    def batches(augment: str | Callable[[Tensor], Tensor]) -> list[Tensor]:
        method = Spy(fresh_net())
        fit(method, next(iter(method.lessons(stream))), replace(PLAN, augment=augment), seed=1)
        return [batch.x for batch in method.seen]

    plain, same, one, two = (batches(a) for a in ("none", lambda pixels: pixels, "flip+crop", "flip+crop"))
    assert all(torch.equal(a, b) for a, b in zip(plain, same, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(plain, one, strict=True))
    state = torch.get_rng_state()
    resolve(Plan())
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("batches", ["mixed", "apart"])
def test_it_works_on_several_tasks_at_once(batches: str, fresh_net: Callable[[], Network], stream: Stream) -> None:
    method = MTL(fresh_net(), batches=batches)
    (lesson,) = method.lessons(stream)
    order = torch.Generator().manual_seed(0)
    for batch in lesson.batches(16, order, augment=dark):
        assert batch.original is not None
        assert float(batch.x.unique().numel()) <= 3
        assert batch.original.shape == batch.x.shape
        assert not torch.equal(batch.original, batch.x)
    assert all(batch.original is None for batch in lesson.batches(16, order))


@pytest.mark.parametrize("maker", [ER, AGEM, FSDGPM])
def test_buffers_keep_images_as_they_are(
    maker: Callable[..., Method], fresh_net: Callable[[], Network], stream: Stream
) -> None:
    method = maker(fresh_net(), memory=20)
    lesson: Lesson = next(iter(method.lessons(stream)))
    fit(method, lesson, replace(PLAN, augment=dark), seed=1)
    kept = (method.replay if isinstance(method, FSDGPM) else method.memory)["x"]  # type: ignore[operator]
    train = lesson.parts[0].train.take(slice(None))[0]
    assert len(kept) == 20
    assert all((train == image).flatten(1).all(1).any() for image in kept)
