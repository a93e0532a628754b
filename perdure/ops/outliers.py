"""What an outlier does to the loss and to the gradients (the argument of the paper's Sec. 3)."""

import torch
import torch.nn.functional as F
from torch import Tensor

from perdure.ops.gradients import TINY, norm
from perdure.types import Weights


def excess_loss(slope: Tensor, shift: Tensor) -> Tensor:
    """First-order growth of the loss when inputs move by `shift` (Eq. 2): ∇ₓLᵀε, per sample; both (n, …) → (n,)."""
    return (slope * shift).flatten(1).sum(1)


def logit_gradient(logits: Tensor, y: Tensor) -> Tensor:
    """∂L/∂r = f(x) − y (Eq. 3): for classes that are not the label, an outlier's larger logit is a larger gradient."""
    return logits.softmax(1) - F.one_hot(y, logits.shape[1]).to(logits.dtype)


def past_gradient(logits: Tensor, past: int) -> Tensor:
    """Σ |∂L/∂r_p| over the first `past` classes, to none of which an image belongs, so that it is Σ f_p (Eq. 3).

    (n, classes) → (n,). In double precision: of a network that is sure, these are the last digits.
    """
    return logits.double().softmax(1)[:, :past].sum(1)


def weight_gradient(output_slope: Tensor, activation_slope: Tensor, x: Tensor) -> Tensor:
    """(∂L/∂r ⊙ σ′) xᵀ for one layer, averaged over the batch (Eq. 4); (n, out), (n, out), (n, in) → (out, in)."""
    return torch.einsum("no,ni->oi", output_slope * activation_slope, x) / len(x)


def weight_span(now: Weights, before: Weights) -> tuple[float, float]:
    """‖W_t − W_{t−1}‖ over all tensors, and as a share of ‖W_{t−1}‖ (Sec. 3.3, Fig. 2a)."""
    moved = float(norm({name: now[name].double() - weight.double() for name, weight in before.items()}))
    return moved, moved / max(float(norm(before)), TINY)
