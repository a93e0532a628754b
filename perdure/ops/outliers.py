"""What an outlier does to the loss and to the gradients (the argument of the paper's Sec. 3)."""

import torch
import torch.nn.functional as F
from torch import Tensor


def excess_loss(slope: Tensor, shift: Tensor) -> Tensor:
    """First-order growth of the loss when inputs move by `shift` (Eq. 2): ∇ₓLᵀε, per sample; both (n, …) → (n,)."""
    return (slope * shift).flatten(1).sum(1)


def logit_gradient(logits: Tensor, y: Tensor) -> Tensor:
    """∂L/∂r = f(x) − y (Eq. 3): for classes that are not the label, an outlier's larger logit is a larger gradient."""
    return logits.softmax(1) - F.one_hot(y, logits.shape[1]).to(logits.dtype)


def weight_gradient(output_slope: Tensor, activation_slope: Tensor, x: Tensor) -> Tensor:
    """(∂L/∂r ⊙ σ′) xᵀ for one layer, averaged over the batch (Eq. 4); (n, out), (n, out), (n, in) → (out, in)."""
    return torch.einsum("no,ni->oi", output_slope * activation_slope, x) / len(x)
