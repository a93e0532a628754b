"""A trained method as a plain module, for other people's attacks."""

from copy import deepcopy
from dataclasses import replace
from typing import Self

from torch import Tensor, nn

from perdure.methods.method import Method
from perdure.types import Split


def torch_module(method: Method, task: int, split: Split) -> nn.Module:
    """Pixels in [0, 1] to the logits of one task, in evaluation mode, weights fixed.

    It is a copy: what the method learns afterwards does not change it. It can be moved to other devices, and needs
    nothing of this package to be attacked:

        module = torch_module(method, task, tasks[task].test)
        x, y = next(iter(TaskModel(method, task, tasks[task].test).batches()))

    foolbox 3:      model = foolbox.PyTorchModel(module, bounds=(0, 1), device=x.device)
                    foolbox.attacks.LinfPGD(steps=20)(model, x, y, epsilons=[2 / 255])
    torchattacks 3: torchattacks.PGD(module, eps=2 / 255, alpha=0.5 / 255, steps=20)(x, y)
    ART 1:          model = PyTorchClassifier(module, loss=nn.CrossEntropyLoss(), input_shape=tuple(x.shape[1:]),
                                              nb_classes=len(tasks[task].classes), clip_values=(0, 1))
                    ProjectedGradientDescent(model, eps=2 / 255, batch_size=len(x)).generate(x.numpy(), y.numpy())

    Where the network uses batch statistics, attack and score whole batches as `TaskModel.batches` gives them: a library
    that cuts a batch, or drops the images that already fail (as AutoAttack does), attacks another network.
    """
    return _Plain(method, task, split)


class _Plain(nn.Module):
    def __init__(self, method: Method, task: int, split: Split) -> None:
        super().__init__()
        self.method = deepcopy(method).requires_grad_(False)
        self.task = task
        self.scaling = replace(split, x=split.x[:0], y=split.y[:0])  # its mean and std; images come from outside
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.method.forward(self.scaling.normalize(x), self.task).logits

    def train(self, mode: bool = True) -> Self:  # noqa: ARG002
        """Libraries switch modes at will; this one stays in evaluation."""
        return super().train(False)
