"""MTL: multitask learning, all tasks at once (Caruana, Machine Learning 1997).

Nothing can be forgotten where nothing comes later: the bound that continual learners are measured against. Each batch
is drawn over the images of all tasks, and its loss is the mean over images, each judged by its own task's head.
"""

from collections.abc import Iterable, Iterator
from typing import ClassVar, Literal, Unpack

from perdure.errors import BadData
from perdure.methods.method import Method, Need, Shared
from perdure.nets.network import Network
from perdure.types import Lesson, Task


class MTL(Method):
    """Plain SGD on all tasks together."""

    may_need: ClassVar[frozenset[Need]] = frozenset({"task-identity", "stored-data"})

    def __init__(
        self,
        net: Network,
        *,
        batches: Literal["mixed", "apart"] = "mixed",  # drawn over all tasks, as published, or each of one task
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__(net, **shared)
        self.batches = batches

    def lessons(self, stream: Iterable[Task]) -> Iterator[Lesson]:
        """One lesson of all tasks. The stream must have an end: what is learned jointly has to be there first."""
        parts = tuple(part for lesson in super().lessons(stream) for part in lesson.parts)
        if not parts:
            raise BadData("no task to learn jointly; give mtl a stream that has tasks, and an end")
        yield Lesson(0, parts, mixed=self.batches == "mixed")
