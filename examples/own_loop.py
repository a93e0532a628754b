"""Protection in a training loop of your own: plain torch, AdamW, one output layer shared by two tasks.

    python examples/own_loop.py

Trains twice, without and with `perdure.Projector`, and prints how far the answers to the first task's test images moved
while the second was learned.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from perdure import Projector, benchmark


def make_model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(3, 16, 5, stride=2), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(),
        nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 6),
    )  # fmt: skip


def outputs(model: nn.Module, x: Tensor, task: int) -> Tensor:
    """Outputs 0 to 2 are the first task's, 3 to 5 the second's."""
    logits: Tensor = model(x)[:, 3 * task : 3 * task + 3]
    return logits


def moved(protected: bool) -> float:
    """‖answers to the first task after both tasks − right after it‖ ÷ ‖the latter‖."""
    tasks, model = benchmark("synthetic", tasks=2).tasks, make_model()
    projector, answers = Projector(model, heads=["7"]), list[Tensor]()
    for number, task in enumerate(tasks):
        optimizer, loader = torch.optim.AdamW(model.parameters(), 2e-3), list(task.train.batches(16))
        model.train()
        for _ in range(5):
            for x, y in loader:
                optimizer.zero_grad()
                F.cross_entropy(outputs(model, x, number), y).backward()
                if protected:
                    model[7].weight.grad[:3] *= float(number == 0)  # the first task's outputs are its own
                    projector.step(optimizer)
                else:
                    optimizer.step()
        projector.observe(loader, number)
        model.eval()
        with torch.no_grad(), projector.statistics(0):
            answers.append(torch.cat([outputs(model, x, 0) for x, _ in tasks[0].test.batches(64)]))
    return float((answers[1] - answers[0]).norm() / answers[0].norm())


if __name__ == "__main__":
    print(f"answers to the first task moved by {moved(protected=False):.3f} of their length, as it is")
    print(f"with a projector by {moved(protected=True):.3f}")
