"""A guard over training by attacks of few steps.

Trained on one large step, a network may learn to resist that step and nothing else: within an epoch its accuracy under
PGD falls to nothing while that under the one step rises (catastrophic overfitting; Wong et al., ICLR 2020). Nothing in
the training loss shows it. So, after each epoch, some validation images are attacked by PGD, and if it fares far worse
than before, also as in training.
"""

import torch

from perdure.methods.method import Method
from perdure.ops.attacks import Ball, training_attack
from perdure.types import Lesson

IMAGES = 64  # of a lesson at most, shared by its tasks
FEWEST = 8  # of each task
STEPS = 5  # of the stronger attack, or twice those trained on
GAP = 20.0  # percent points between the two


def guard(method: Method, lesson: Lesson, epoch: int) -> str | None:
    """What is to be said if the attack trained on no longer shows what a stronger one does: their accuracies differ by
    more than 20 points, and that under the stronger one is less than half of its best in this lesson. From then on
    training has twice as many steps."""
    if method.attack is None or not method.attack_guard:
        return None
    if epoch == 0:
        method.robust_best = 0.0  # of this lesson
    steps = method.attack_steps_now
    stronger = accuracy_under_attack(method, lesson, method.attack, more := max(STEPS, 2 * steps))
    method.robust_best = max(method.robust_best, stronger)
    if stronger >= method.robust_best / 2:
        return None
    trained = accuracy_under_attack(method, lesson, method.attack, steps)
    if trained - stronger <= GAP:
        return None
    method.attack_steps_now = 2 * steps
    said = (
        f"task {lesson.index + 1}, epoch {epoch + 1}: of images attacked as in training ({_count(steps)}) "
        f"{trained:.0f} % are answered right, of those attacked in {_count(more)} {stronger:.0f} %: robustness has "
        f"collapsed; training goes on with {_count(2 * steps)}. To begin so: --set attack_steps={2 * steps}"
    )
    method.cautions = (*method.cautions, said)
    return said


def accuracy_under_attack(method: Method, lesson: Lesson, strength: float, steps: int) -> float:
    """Percent of some validation images, in evaluation mode."""
    method.eval()
    ball, hits, images = Ball("linf", strength), 0, 0
    for part in lesson.parts:
        for rows in part.valid.pieces(IMAGES, max(FEWEST, IMAGES // len(lesson.parts))):
            pixels, y = part.valid.pixels(rows), part.valid.y[rows]
            model = method.classifier(part.task, part.valid.scale(pixels))
            moved = training_attack(model, pixels, y, ball, steps=steps, rng=torch.default_generator)
            hits, images = hits + int((model.logits(moved).argmax(1) == y).sum()), images + len(y)
    return 100 * hits / images


def _count(steps: int) -> str:
    return f"{steps} step{'s' if steps > 1 else ''}"
