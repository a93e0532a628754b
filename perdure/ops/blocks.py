"""Parts of networks that torch has too, here with less to do."""

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from perdure import fast

LEVELS = 1 << 16  # chances of dropout are counted in these: sixteen bits an entry


def dropout(x: Tensor, rate: float) -> Tensor:
    """Each entry is zero with probability `rate`, else 1/(1 − rate) times what it was."""
    if rate == 0:
        return x
    if x.device.type != "cpu" or not fast.on("masks"):
        return F.dropout(x, rate)
    return x * kept(x, rate).div_(1 - rate)


def kept(x: Tensor, rate: float) -> Tensor:
    """Zeros and ones in the shape, layout and type of `x`, each zero with probability `rate`, to 1/65536.

    torch draws a mask entry by entry from a generator that is sequential, which takes longer than the convolution it
    follows. Here torch draws one number, and from it NumPy's fastest generator makes four entries at a time.
    """
    seed = int(torch.randint(torch.iinfo(torch.int64).max, ()))
    count = x.numel()
    bits = np.random.Generator(np.random.SFC64(seed)).integers(0, 1 << 64, -(-count // 4), dtype=np.uint64)
    draws = torch.from_numpy(bits.view(np.int16))[:count]
    mask = torch.empty_like(x)
    torch.ge(draws, round(rate * LEVELS) - LEVELS // 2, out=mask.as_strided((count,), (1,)))
    return mask


def relu_drop_pool(x: Tensor, rate: float) -> Tensor:
    """ReLU, dropout with a `rate`, then the maximum of every 2×2 square; x (n, channels, height, width).

    The maximum of what ReLU leaves is what ReLU leaves of the maximum, and dropout neither changes a sign nor an order
    among the entries it keeps. So ReLU and the scaling may come last, on a quarter of the entries. The way back needs
    no mask: a square whose largest entry was dropped gives zero, where ReLU lets nothing through.
    """
    if x.device.type != "cpu" or not fast.on("pooling"):
        return F.max_pool2d(dropout(F.relu(x), rate), 2)
    pooled: Tensor = _DropPool.apply(x, rate)  # type: ignore[no-untyped-call]
    return pooled


class _DropPool(torch.autograd.Function):
    """Its backward is made of steps that can be derived again, for methods that look at second derivatives."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, rate: float) -> Tensor:
        mask = None
        if rate:
            mask = kept(x, rate) if fast.on("masks") else torch.empty_like(x).bernoulli_(1 - rate)
        largest, places = F.max_pool2d(x if mask is None else x * mask, 2, return_indices=True)
        out = largest.relu_()
        out = out.div_(1 - rate) if rate else out
        ctx.save_for_backward(x, places, out)
        ctx.rate = rate
        return out

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None]:
        x, places, out = ctx.saved_tensors
        passed = torch.ops.aten.threshold_backward(slope, out, 0)
        passed = passed / (1 - ctx.rate) if ctx.rate else passed
        # of x it reads the shape alone
        return torch.ops.aten.max_pool2d_with_indices_backward(
            passed, x, [2, 2], [2, 2], [0, 0], [1, 1], False, places
        ), None
