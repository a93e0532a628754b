"""Dropout and pooling with less to do on a CPU."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from perdure import fast
from perdure.fast.joint_batches import mode

LEVELS = 1 << 16  # chances of dropout are counted in these: sixteen bits an entry


def dropout(x: Tensor, rate: float) -> Tensor:
    """Each entry is zero with probability `rate`, else 1/(1 − rate) times what it was."""
    return x if rate == 0 else drop_rows(x, partial(_dropout, rate=rate))


def drop_rows(x: Tensor, drop: Callable[[Tensor], Tensor]) -> Tensor:
    """Dropout of those rows that the forward at hand wants to have it."""
    if mode().forks(x):
        return torch.cat([drop(x), x])
    dropped = mode().dropped(x)
    if dropped == len(x):
        return drop(x)
    return torch.cat([drop(x[:dropped]), x[dropped:]]) if dropped else x


def _dropout(x: Tensor, rate: float) -> Tensor:
    if x.device.type != "cpu" or not fast.on("dropout_masks"):
        return F.dropout(x, rate)
    return x * random_mask(x, rate).div_(1 - rate)


def random_mask(like: Tensor, rate: float) -> Tensor:
    """Zeros and ones in the shape, layout and type of a tensor, each zero with probability `rate`, to 1/65536.

    torch draws a mask entry by entry from a generator that is sequential, which takes longer than the convolution it
    follows. Here torch draws one number, and from it NumPy's fastest generator makes four entries at a time.
    """
    if not fast.on("dropout_masks"):
        return torch.empty_like(like).bernoulli_(1 - rate)
    seed, count = int(torch.randint(torch.iinfo(torch.int64).max, ())), like.numel()
    bits = np.random.Generator(np.random.SFC64(seed)).integers(0, 1 << 64, -(-count // 4), dtype=np.uint64)
    mask, drawn = torch.empty_like(like), torch.from_numpy(bits.view(np.int16))[:count]
    torch.ge(drawn, round(rate * LEVELS) - LEVELS // 2, out=mask.as_strided((count,), (1,)))
    return mask


def relu_dropout_pool(x: Tensor, rate: float) -> Tensor:
    """ReLU, dropout with a `rate`, then the maximum of every 2×2 square; x (n, channels, height, width).

    The maximum of what ReLU leaves is what ReLU leaves of the maximum, and dropout neither changes a sign nor an order
    among the entries it keeps. So ReLU and the scaling may come last, on a quarter of the entries. The backward pass
    needs no mask: a square whose largest entry was dropped gives zero, where ReLU lets nothing through.
    """
    if x.device.type != "cpu" or not fast.on("pooling"):
        return F.max_pool2d(dropout(F.relu(x), rate), 2)
    forks = rate > 0 and mode().forks(x)
    pooled: Tensor = _DropPool.apply(x, rate, len(x) if forks else mode().dropped(x), forks)  # type: ignore[no-untyped-call]
    return pooled


class _DropPool(torch.autograd.Function):
    """Its backward is made of steps that can be derived again, for methods that need second derivatives."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, rate: float, dropped: int, forks: bool) -> Tensor:
        """Dropout of the first rows; all of them once more without it, if the rows fork."""
        pieces = [x[:dropped], x if forks else x[dropped:]]
        if rate and dropped:
            pieces[0] = pieces[0] * random_mask(pieces[0], rate)
        (_, channels, height, width), rows = x.shape, sum(map(len, pieces))
        channels_last = x.is_contiguous(memory_format=torch.channels_last)
        layout = torch.channels_last if channels_last else torch.contiguous_format
        out = torch.empty(rows, channels, height // 2, width // 2, dtype=x.dtype, memory_format=layout)
        indices = torch.empty_like(out, dtype=torch.int64)
        for piece, top, at in zip(pieces, _halves(out, dropped), _halves(indices, dropped), strict=True):
            if len(piece):
                torch.ops.aten.max_pool2d_with_indices(piece, [2, 2], out=top, indices=at)
        out.relu_()
        out[:dropped].div_(1 - rate)
        ctx.save_for_backward(indices, out, x)
        ctx.rate, ctx.dropped, ctx.forks = rate, dropped, forks
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        indices, out, x = ctx.saved_tensors
        passed = torch.ops.aten.threshold_backward(grad, out, 0)
        if ctx.rate and ctx.dropped:
            first, rest = _halves(passed, ctx.dropped)
            passed = torch.cat([first / (1 - ctx.rate), rest]) if len(rest) else first / (1 - ctx.rate)
        if not ctx.forks:
            return _unpool(passed, x, indices), None, None, None
        both = zip(_halves(passed, ctx.dropped), _halves(indices, ctx.dropped), strict=True)
        one, other = [_unpool(piece, x, at) for piece, at in both]
        return one + other, None, None, None


def _halves(x: Tensor, first: int) -> tuple[Tensor, Tensor]:
    return x[:first], x[first:]


def _unpool(grad: Tensor, x: Tensor, indices: Tensor) -> Tensor:
    """Of x it reads the shape alone."""
    found: Tensor = torch.ops.aten.max_pool2d_with_indices_backward(
        grad, x, [2, 2], [2, 2], [0, 0], [1, 1], False, indices
    )
    return found
