"""The recursive least-squares projector: learns, input by input, which directions a layer has been shown."""

import torch
from torch import Tensor


def update(projector: Tensor, inputs: Tensor, regularizer: float, out: Tensor | None = None) -> Tensor:
    """P − P R (αI + RᵀP R)⁻¹ RᵀP: the projector (d, d) after it has seen the columns of R = `inputs` (d, n).

    This equals n rank-one updates P ← P − k kᵀ/(α + rᵀk), k = P r, one per column in any order, for both add R Rᵀ/α to
    P⁻¹. It starts as the identity and shrinks along what it sees, the more the smaller α is, so that `gradient @ P` has
    little left there. Use float64: with α = 1e-5 its small eigenvalues are below the rounding of float32. The result is
    written to `out`, which may be the projector itself; large ones are several times as fast in place.

    >>> seen = torch.tensor([[1.0], [0.0]], dtype=torch.float64)
    >>> update(torch.eye(2, dtype=torch.float64), seen, 1.0)
    tensor([[0.5000, 0.0000],
            [0.0000, 1.0000]], dtype=torch.float64)
    """
    r = inputs.to(projector)
    if r.shape[1] > r.shape[0]:  # only R Rᵀ matters, and d columns are enough to have it
        r = torch.linalg.qr(r.T, mode="r").R.T
    gain = projector @ r
    inner = r.T @ gain
    inner.diagonal().add_(regularizer)
    # not `solve`: it would stop at the inputs of a network that has diverged, which the loop tells the user better
    return torch.addmm(projector, gain, torch.linalg.solve_ex(inner, gain.T).result, alpha=-1, out=out)
