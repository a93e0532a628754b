"""Protection inside Hugging Face's Trainer, which steps by itself: one line where the optimizer is made.

    pip install transformers accelerate
    python examples/own_loop_transformers.py

A small vision transformer, drawn at random, learns two tasks, without and with `perdure.Projector`; printed is how far
the answers to the first task's test images moved while the second was learned.
"""

from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset
from transformers import PrinterCallback, Trainer, TrainingArguments, ViTConfig, ViTModel, set_seed

from perdure import Projector, benchmark
from perdure.types import Split


class Images(Dataset[dict[str, Tensor]]):
    """A task's images as the Trainer wants them."""

    def __init__(self, split: Split) -> None:
        self.x, self.y = split.take(slice(None))

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, row: int) -> dict[str, Tensor]:
        return {"pixel_values": self.x[row], "labels": self.y[row]}


class Learner(nn.Module):
    """One backbone and a head for each task."""

    def __init__(self) -> None:
        super().__init__()
        config = ViTConfig(
            image_size=32, patch_size=8, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
            intermediate_size=64,
        )  # fmt: skip
        self.backbone = ViTModel(config, add_pooling_layer=False)
        self.heads = nn.ModuleList([nn.Linear(32, 3), nn.Linear(32, 3)])
        self.task = 0

    def forward(self, pixel_values: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        logits = self.heads[self.task](self.backbone(pixel_values).last_hidden_state[:, 0])
        if labels is None:
            return {"logits": logits}
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def moved(protected: bool) -> float:
    """‖answers to the first task after both tasks − right after it‖ ÷ ‖the latter‖."""
    set_seed(1)
    learner, tasks, answers = Learner(), benchmark("synthetic", tasks=2).tasks, list[Tensor]()
    projector = Projector(learner.backbone, threshold=0.99)
    plan: dict[str, Any] = {"num_train_epochs": 5, "per_device_train_batch_size": 16, "lr_scheduler_type": "constant"}
    quiet: dict[str, Any] = {"report_to": "none", "save_strategy": "no", "logging_strategy": "no", "disable_tqdm": True}
    for number, task in enumerate(tasks):
        learner.task = number
        optimizer = torch.optim.AdamW([*learner.backbone.parameters(), *learner.heads[number].parameters()], 1e-3)
        if protected:
            projector.attach(optimizer)  # every step that the Trainer makes is projected
        with TemporaryDirectory() as folder:
            arguments = TrainingArguments(folder, use_cpu=True, dataloader_pin_memory=False, **plan, **quiet)
            trainer = Trainer(learner, arguments, train_dataset=Images(task.train), optimizers=(optimizer, None))
            trainer.remove_callback(PrinterCallback)
            trainer.train()
        projector.observe(task.train.batches(16), number)
        learner.eval()
        learner.task = 0
        with torch.no_grad():
            answers.append(torch.cat([learner(x)["logits"] for x, _ in tasks[0].test.batches(64)]))
    return float((answers[1] - answers[0]).norm() / answers[0].norm())


if __name__ == "__main__":
    print(f"answers to the first task moved by {moved(protected=False):.3f} of their length, as it is")
    print(f"with a projector by {moved(protected=True):.3f}")
