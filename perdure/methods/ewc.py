"""EWC: Elastic Weight Consolidation (Kirkpatrick et al., PNAS 2017), as HAT's code has it (Serrà et al., ICML 2018).

Weights that matter to old tasks are tied to their old values by springs. How much a weight matters is read from the
diagonal of the Fisher information: the squared gradients of the loss where a task has just been learned.
"""

from typing import Any, Unpack

from perdure.memory.bank import TensorBank
from perdure.methods.method import Method, Shared
from perdure.nets.network import Network
from perdure.ops.fisher import add_ewc_gradient, diagonal_fisher, ewc_penalty, merge
from perdure.ops.gradients import clip, grad
from perdure.schema import Count, Positive, Weight
from perdure.types import Batch, Gradient, Lesson, Weights


class EWC(Method):
    def __init__(
        self,
        net: Network,
        *,
        coefficient: Weight = 5000.0,  # λ: stiffness of the springs
        clip: Positive | None = 100.0,  # longest gradient, springs included; none leaves it as it is
        fisher_batch: Count = 20,  # images per squared gradient; 1 is the textbook's Fisher, in another scale
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__(net, **shared)
        self.coefficient = coefficient
        self.clip = clip
        self.fisher_batch = fisher_batch
        self.fisher = TensorBank()  # F: mean over the tasks so far
        self.anchor = TensorBank()  # θ*: the weights after the last of them

    def gradient(self, batch: Batch) -> Gradient:
        """Of CE + (λ/2) Σ F (θ − θ*)²; heads that no task has used have no springs."""
        weights = self.trainable()
        gradient = grad(self.loss(batch), weights)
        gradient = add_ewc_gradient(gradient, weights, *self._springs(), self.coefficient)
        return gradient if self.clip is None else clip(gradient, self.clip)

    def end(self, lesson: Lesson) -> None:
        """F ← (F_new + t F_old)/(t + 1), t tasks before this one; θ* ← θ. In training mode, as the loss was."""
        self.train()
        weights = self.trainable()
        # Batches of mixed classes, whatever the order of the files: HAT's images come shuffled.
        batches = (Batch(x, y, part.task) for part in lesson.parts for x, y in part.train.batches(self.fisher_batch))
        gradients = (grad(self.loss(batch), weights) for batch in batches)
        with self.net.kept_statistics():
            new = diagonal_fisher(gradients, self.fisher_batch, len(lesson))
        for name, importance in merge(self._springs()[1], new, lesson.index).items():
            self.fisher[name] = importance
            self.anchor[name] = weights[name].detach().clone()

    def penalty(self) -> float:
        """(λ/2) Σ F (θ − θ*)², as HAT's validation loss has it."""
        return ewc_penalty(self.trainable(), *self._springs(), self.coefficient)

    def _springs(self) -> tuple[Weights, Weights]:
        return dict(self.anchor.items()), dict(self.fisher.items())

    def remedy(self) -> str:
        return f", or soften the springs, e.g. --set coefficient={self.coefficient / 10:g}"

    def memory_bytes(self) -> dict[str, int]:
        return {"fisher": self.fisher.bytes() + self.anchor.bytes()}

    def facts(self) -> dict[str, Any]:
        """SGD of rate η goes back and forth on springs stiffer than 2/η: λ times the largest F tells."""
        largest = max((float(importance.max()) for _, importance in self.fisher.items()), default=0.0)
        return {"largest_fisher": largest}
