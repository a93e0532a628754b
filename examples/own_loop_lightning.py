"""Protection inside Lightning, which steps by itself: one line where the optimizer is made.

    pip install lightning
    python examples/own_loop_lightning.py

Trains twice, without and with `perdure.Projector`, and prints how far the answers to the first task's test images moved
while the second was learned.
"""

import logging
import warnings

import lightning
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from perdure import Projector, benchmark


class Learner(lightning.LightningModule):
    """One backbone and a head for each task."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(3, 16, 5, stride=2), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(),
            nn.Linear(256, 64), nn.ReLU(),
        )  # fmt: skip
        self.heads = nn.ModuleList([nn.Linear(64, 3), nn.Linear(64, 3)])
        self.task, self.projector = 0, Projector(self.backbone, threshold=0.99)
        self.protected = False

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.heads[self.task](self.backbone(x))
        return logits

    def training_step(self, batch: list[Tensor]) -> Tensor:
        x, y = batch
        return F.cross_entropy(self(x), y)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        own = [*self.backbone.parameters(), *self.heads[self.task].parameters()]
        optimizer = torch.optim.AdamW(own, 2e-3)
        if self.protected:
            self.projector.attach(optimizer)  # every step that Lightning makes is projected
        return optimizer


def moved(protected: bool) -> float:
    """‖answers to the first task after both tasks − right after it‖ ÷ ‖the latter‖."""
    lightning.seed_everything(1, verbose=False)
    learner, tasks, answers = Learner(), benchmark("synthetic", tasks=2).tasks, list[Tensor]()
    learner.protected = protected
    for number, task in enumerate(tasks):
        learner.task = number
        loader = DataLoader(TensorDataset(*task.train.take(slice(None))), 16, shuffle=True)
        trainer = lightning.Trainer(
            max_epochs=5, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False,
        )  # fmt: skip
        trainer.fit(learner, loader)
        learner.projector.observe(loader, number)
        learner.eval()
        learner.task = 0
        with torch.no_grad(), learner.projector.statistics(0):
            answers.append(torch.cat([learner(x) for x, _ in tasks[0].test.batches(64)]))
        learner.train()
    return float((answers[1] - answers[0]).norm() / answers[0].norm())


if __name__ == "__main__":
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")
    print(f"answers to the first task moved by {moved(protected=False):.3f} of their length, as it is")
    print(f"with a projector by {moved(protected=True):.3f}")
