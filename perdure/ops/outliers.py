"""What an outlier does to the loss and to the gradients (the argument of the paper's Sec. 3)."""

from torch import Tensor

from perdure.ops.gradients import TINY, norm
from perdure.types import Weights


def excess_loss(gradient: Tensor, shift: Tensor) -> Tensor:
    """First-order growth of the loss when inputs move by `shift` (Eq. 2): ∇ₓLᵀε, per sample; both (n, …) → (n,)."""
    return (gradient * shift).flatten(1).sum(1)


def past_gradient(logits: Tensor, past: int) -> Tensor:
    """Σ |∂L/∂r_p| over the first `past` classes, where ∂L/∂r = f(x) − y (Eq. 3): no image belongs to any of them, so
    that it is Σ f_p, and an outlier's larger logit is a larger gradient.

    (n, classes) → (n,). In double precision: of a network that is sure, these are the last digits.
    """
    return logits.double().softmax(1)[:, :past].sum(1)


def weight_span(now: Weights, before: Weights) -> tuple[float, float]:
    """‖W_t − W_{t−1}‖ over all tensors, and as a share of ‖W_{t−1}‖ (Sec. 3.3, Fig. 2a)."""
    moved = float(norm({name: now[name].double() - weight.double() for name, weight in before.items()}))
    return moved, moved / max(float(norm(before)), TINY)
