"""The textbook implementation: GPM and RCL on the papers' CIFAR-100 AlexNet, written the plain way.

`perdure bench` measures against it. It computes what the package computes, the way the papers' public scripts do, with
torch and numpy and no shortcuts: dense d×d projectors, eight forwards per RCL step, weights perturbed in place and
restored, patches cut one by one, full SVDs. It is not slowed down on purpose: where the papers leave a choice it takes
the cheaper one. `tests/benchmarks/test_textbook.py` tests that both give the same numbers.
"""

from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

TINY = 1e-16  # added to norms before dividing by them
PATCH_IMAGES = (24, 100, 100, 125, 125)  # images that each layer's representation is made from

Scores = tuple[float, float]  # mean loss, accuracy


class AlexNet(nn.Module):
    """Three convolutions and two linear layers, none with a bias; one bias-free head per task, all made at once.

    Batch norm keeps no running statistics: it uses those of the current batch, in evaluation, too.
    """

    def __init__(
        self,
        tasks: int = 10,
        classes: int = 10,
        *,
        filters: tuple[int, int, int] = (64, 128, 256),
        units: tuple[int, int] = (2048, 2048),
        dropout: bool = True,
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, filters[0], 4, bias=False)
        self.bn1 = nn.BatchNorm2d(filters[0], track_running_stats=False)
        self.conv2 = nn.Conv2d(filters[0], filters[1], 3, bias=False)
        self.bn2 = nn.BatchNorm2d(filters[1], track_running_stats=False)
        self.conv3 = nn.Conv2d(filters[1], filters[2], 2, bias=False)
        self.bn3 = nn.BatchNorm2d(filters[2], track_running_stats=False)
        self.fc1 = nn.Linear(filters[2] * 2 * 2, units[0], bias=False)  # 32 pixels → 14 → 6 → 2 after the pools
        self.bn4 = nn.BatchNorm1d(units[0], track_running_stats=False)
        self.fc2 = nn.Linear(units[0], units[1], bias=False)
        self.bn5 = nn.BatchNorm1d(units[1], track_running_stats=False)
        self.heads = nn.ModuleList(nn.Linear(units[1], classes, bias=False) for _ in range(tasks))
        self.conv_rates = (0.2, 0.2, 0.5) if dropout else (0.0, 0.0, 0.0)
        self.linear_rate = 0.5 if dropout else 0.0

    def layers(self) -> list[nn.Conv2d | nn.Linear]:
        """The layers whose inputs are remembered and whose gradients are projected: all but the heads."""
        return [self.conv1, self.conv2, self.conv3, self.fc1, self.fc2]

    def forward(self, x: Tensor, task: int) -> Tensor:
        """Logits of the task's head; x (n, 3, 32, 32)."""
        x = F.relu(self.bn5(self._up_to_fc2(x, conv_dropout=True)))
        logits: Tensor = self.heads[task](F.dropout(x, self.linear_rate, self.training))
        return logits

    def features(self, x: Tensor) -> Tensor:
        """Features of uniformity and alignment: fc2's output before its batch norm, at unit length.

        The released code has a separate forward for this, in which only the linear layers have dropout.
        """
        return F.normalize(self._up_to_fc2(x, conv_dropout=False), dim=1)

    def _up_to_fc2(self, x: Tensor, conv_dropout: bool) -> Tensor:
        convs, norms = (self.conv1, self.conv2, self.conv3), (self.bn1, self.bn2, self.bn3)
        for conv, norm, rate in zip(convs, norms, self.conv_rates, strict=True):
            x = F.relu(norm(conv(x)))
            if conv_dropout:
                x = F.dropout(x, rate, self.training)
            x = F.max_pool2d(x, 2)
        x = F.relu(self.bn4(self.fc1(x.flatten(1))))
        features: Tensor = self.fc2(F.dropout(x, self.linear_rate, self.training))
        return features


# ── steps ───────────────────────────────────────────────────────────────────────────────────────────────────────


def dense_projectors(bases: list[np.ndarray], dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """M Mᵀ of every layer, (d, d); made once per task."""
    return [torch.from_numpy(basis @ basis.T).to(dtype) for basis in bases]


@torch.no_grad()
def project(net: AlexNet, projectors: list[Tensor] | None) -> None:
    """From the second task on: G ← G − G M Mᵀ in every layer, and batch norm is fixed. Heads are not projected."""
    if projectors is None:
        return
    for layer, projector in zip(net.layers(), projectors, strict=True):
        grad = layer.weight.grad
        assert grad is not None
        grad -= (grad.view(len(grad), -1) @ projector).view_as(grad)
    for weight in net.parameters():
        if weight.ndim == 1 and weight.grad is not None:
            weight.grad.zero_()


def gpm_step(
    net: AlexNet, optimizer: torch.optim.Optimizer, projectors: list[Tensor] | None, x: Tensor, y: Tensor, task: int
) -> None:
    """One step of GPM; no projectors means the first task."""
    optimizer.zero_grad()
    F.cross_entropy(net(x, task), y).backward()
    project(net, projectors)
    optimizer.step()


def rcl_step(
    net: AlexNet,
    optimizer: torch.optim.Optimizer,
    projectors: list[Tensor] | None,
    x: Tensor,
    y: Tensor,
    task: int,
    *,
    mixing: tuple[Tensor, Tensor] | None = None,  # γ (n,) and π (n,), drawn if not given
    concentration: float = 20.0,  # γ ~ Beta(a, a)
    mix_weight: float = 0.1,  # λ
    ua_weight: float = 1.0,  # κ
    radius: float = 0.05,  # ρ
) -> None:
    """One step of RCL as released: perturb weights and mixture towards the worst, take the gradient there, restore."""
    if mixing is None:
        share = torch.distributions.Beta(concentration, concentration).sample((len(x),)).clamp(0, 1).to(x)
        mixing = share, torch.randperm(len(x), device=x.device)
    share, partner = mixing[0].clone().requires_grad_(), mixing[1]

    optimizer.zero_grad()
    rcl_loss(net, x, y, task, share, partner, mix_weight, ua_weight).backward()
    with torch.no_grad():
        perturbed = [weight for weight in net.parameters() if weight.grad is not None]  # not the other tasks' heads
        length = torch.stack([weight.grad.norm() for weight in perturbed]).norm()  # one norm over all weights
        steps = [weight.grad * (radius / (length + TINY)) for weight in perturbed]
        for weight, step in zip(perturbed, steps, strict=True):
            weight.add_(step)
        worst_share = (share + radius * share.grad / (share.grad.norm() + TINY)).clamp(0, 1)

    optimizer.zero_grad()
    rcl_loss(net, x, y, task, worst_share, partner, mix_weight, ua_weight).backward()
    with torch.no_grad():
        for weight, step in zip(perturbed, steps, strict=True):
            weight.sub_(step)
    project(net, projectors)
    optimizer.step()


def rcl_loss(
    net: AlexNet,
    x: Tensor,
    y: Tensor,
    task: int,
    share: Tensor,
    partner: Tensor,
    mix_weight: float,
    ua_weight: float,
) -> Tensor:
    """J = L(x) + λ L(x̃) + κ L_ua, from four forwards: raw and mixed, logits and features."""
    each = share.view(-1, 1, 1, 1)
    mixed_x = (1 - each) * x + each * x[partner]
    plain = F.cross_entropy(net(x, task), y)
    mixed_logits = net(mixed_x, task)
    # The released label weights: averaged over the batch, constant, and swapped against the images'.
    weight = share.detach().mean()
    mixed = weight * F.cross_entropy(mixed_logits, y) + (1 - weight) * F.cross_entropy(mixed_logits, y[partner])
    z, mixed_z = net.features(x), net.features(mixed_x)
    alignment = (z - mixed_z).square().sum(1).mean()
    uniformity = torch.pdist(torch.cat([z, mixed_z])).square().mul(-2).exp().mean().log()
    return plain + mix_weight * mixed + ua_weight * (alignment + uniformity)


# ── memory ──────────────────────────────────────────────────────────────────────────────────────────────────────


@torch.no_grad()
def representations(net: AlexNet, x: Tensor) -> list[np.ndarray]:
    """Every layer's inputs as columns (d, positions), from one forward of the given images (125 in the papers)."""
    net.eval()
    inputs: list[Tensor] = []
    hooks = [layer.register_forward_pre_hook(lambda _, got: inputs.append(got[0])) for layer in net.layers()]
    net.features(x)
    for hook in hooks:
        hook.remove()
    matrices = []
    for layer, received, images in zip(net.layers(), inputs, PATCH_IMAGES, strict=True):
        values = received[:images].cpu().numpy()
        matrices.append(patches(values, layer.kernel_size[0]) if isinstance(layer, nn.Conv2d) else values.T)
    return matrices


def patches(x: np.ndarray, kernel: int) -> np.ndarray:
    """Every patch of a convolution's input as one float64 column; x (n, channels, side, side)."""
    images, channels, side = len(x), x.shape[1], x.shape[2] - kernel + 1
    columns = np.zeros((channels * kernel * kernel, images * side * side))
    at = 0
    for image in range(images):
        for row in range(side):
            for column in range(side):
                columns[:, at] = x[image, :, row : row + kernel, column : column + kernel].reshape(-1)
                at += 1
    return columns


def update_memory(bases: list[np.ndarray] | None, matrices: list[np.ndarray], threshold: float) -> list[np.ndarray]:
    """Bases (d, k) that hold a share ε of each layer's input energy: just below it after the first task (no bases
    yet), at least as much later."""
    if bases is None:
        return [first_basis(matrix, threshold) for matrix in matrices]
    return [grown_basis(basis, matrix, threshold) for basis, matrix in zip(bases, matrices, strict=True)]


def first_basis(matrix: np.ndarray, threshold: float) -> np.ndarray:
    vectors, values, _ = np.linalg.svd(matrix, full_matrices=False)
    shares = values**2 / (values**2).sum()
    count = int((np.cumsum(shares) < threshold).sum())
    return vectors[:, :count]


def grown_basis(basis: np.ndarray, matrix: np.ndarray, threshold: float) -> np.ndarray:
    _, values, _ = np.linalg.svd(matrix, full_matrices=False)  # the released code takes ‖R‖² from a whole SVD
    total = (values**2).sum()
    rest = matrix - basis @ (basis.T @ matrix)
    vectors, values, _ = np.linalg.svd(rest, full_matrices=False)
    held, count = (total - (values**2).sum()) / total, 0
    for share in values**2 / total:
        if held >= threshold:
            break
        held += share
        count += 1
    return np.hstack([basis, vectors[:, :count]])[:, : len(matrix)]


# ── epochs ──────────────────────────────────────────────────────────────────────────────────────────────────────


def run_epoch(
    step: Callable[[Tensor, Tensor], None],
    net: AlexNet,
    train: tuple[Tensor, Tensor],
    valid: tuple[Tensor, Tensor],
    task: int,
    batch: int = 64,
) -> tuple[Scores, Scores]:
    """Every training image once, in a new order; then, as the public scripts do, both sets are evaluated."""
    net.train()
    x, y = train
    for rows in torch.randperm(len(x), device=x.device).split(batch):  # the last, short batch is kept
        step(x[rows], y[rows])
    return evaluate(net, x, y, task, batch), evaluate(net, *valid, task, batch)


@torch.no_grad()
def evaluate(net: AlexNet, x: Tensor, y: Tensor, task: int, batch: int = 64) -> Scores:
    """Mean loss and accuracy, dropout off. Batches are shuffled each time, as in the public scripts."""
    net.eval()
    loss, hits = 0.0, 0
    for rows in torch.randperm(len(x), device=x.device).split(batch):
        logits = net(x[rows], task)
        loss += F.cross_entropy(logits, y[rows]).item() * len(rows)
        hits += int((logits.argmax(1) == y[rows]).sum())
    return loss / len(x), hits / len(x)
