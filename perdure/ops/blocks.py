"""Parts of networks that torch has too, here with less to do."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from perdure import fast
from perdure.ops.apart import joined
from perdure.ops.interception import unmet

LEVELS = 1 << 16  # chances of dropout are counted in these: sixteen bits an entry


def dropout(x: Tensor, rate: float) -> Tensor:
    """Each entry is zero with probability `rate`, else 1/(1 − rate) times what it was."""
    if rate == 0:
        return x
    if x.device.type != "cpu" or not fast.on("masks"):
        return F.dropout(x, rate)
    with unmet():
        scale = kept([x], rate)[0].div_(1 - rate)
    return x * scale


def kept(like: Sequence[Tensor], rate: float) -> list[Tensor]:
    """Zeros and ones in the shapes, layout and type of tensors, each zero with probability `rate`, to 1/65536.

    torch draws a mask entry by entry from a generator that is sequential, which takes longer than the convolution it
    follows. Here torch draws one number, and from it NumPy's fastest generator makes four entries at a time.
    """
    seed = int(torch.randint(torch.iinfo(torch.int64).max, ()))
    counts = [x.numel() for x in like]
    bits = np.random.Generator(np.random.SFC64(seed)).integers(0, 1 << 64, -(-sum(counts) // 4), dtype=np.uint64)
    draws = torch.split(torch.from_numpy(bits.view(np.int16))[: sum(counts)], counts)
    masks = [torch.empty_like(x) for x in like]
    for mask, drawn in zip(masks, draws, strict=True):
        torch.ge(drawn, round(rate * LEVELS) - LEVELS // 2, out=mask.as_strided((len(drawn),), (1,)))
    return masks


def relu_drop_pool(parts: Sequence[Tensor], rate: float) -> Tensor:
    """ReLU, dropout with a `rate`, then the maximum of every 2×2 square, of several batches (n, channels, height,
    width) that leave as one.

    The maximum of what ReLU leaves is what ReLU leaves of the maximum, and dropout neither changes a sign nor an order
    among the entries it keeps. So ReLU and the scaling may come last, on a quarter of the entries. The way back needs
    no mask: a square whose largest entry was dropped gives zero, where ReLU lets nothing through.
    """
    if parts[0].device.type != "cpu" or not fast.on("pooling"):
        return joined(F.max_pool2d(dropout(F.relu(x), rate), 2) for x in parts)
    pooled: Tensor = _DropPool.apply(rate, *parts)  # type: ignore[no-untyped-call]
    return pooled


class _DropPool(torch.autograd.Function):
    """Its backward is made of steps that can be derived again, for methods that look at second derivatives."""

    @staticmethod
    def forward(ctx: Any, rate: float, *parts: Tensor) -> Tensor:
        with unmet():
            out, places = _dropped_and_pooled(parts, rate)
        ctx.save_for_backward(places, out, *parts)
        ctx.rate, ctx.rows = rate, [len(x) for x in parts]
        return out

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        places, out, *parts = ctx.saved_tensors
        passed = torch.ops.aten.threshold_backward(slope, out, 0)
        passed = passed / (1 - ctx.rate) if ctx.rate else passed
        # of x it reads the shape alone
        back = [
            torch.ops.aten.max_pool2d_with_indices_backward(piece, x, [2, 2], [2, 2], [0, 0], [1, 1], False, at)
            for piece, x, at in zip(passed.split(ctx.rows), parts, places.split(ctx.rows), strict=True)
        ]
        return None, *back


def _dropped_and_pooled(parts: Sequence[Tensor], rate: float) -> tuple[Tensor, Tensor]:
    """What is left, and where it was; written as one batch from the start."""
    (n, channels, height, width), rows = parts[0].shape, sum(map(len, parts))
    last = parts[0].is_contiguous(memory_format=torch.channels_last)
    layout = torch.channels_last if last else torch.contiguous_format
    out = torch.empty(rows, channels, height // 2, width // 2, dtype=parts[0].dtype, memory_format=layout)
    places = torch.empty_like(out, dtype=torch.int64)
    if rate:
        masks = kept(parts, rate) if fast.on("masks") else [torch.empty_like(x).bernoulli_(1 - rate) for x in parts]
        parts = [x * mask for x, mask in zip(parts, masks, strict=True)]
    for x, top, at in zip(parts, torch.split(out, n), torch.split(places, n), strict=True):
        torch.ops.aten.max_pool2d_with_indices(x, [2, 2], out=top, indices=at)
    out.relu_()
    return out.div_(1 - rate) if rate else out, places
