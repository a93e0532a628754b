"""What a run would take, from one epoch of it."""

import torch

from perdure.lab.build import open_stream
from perdure.lab.estimate import estimate_run
from perdure.lab.spec import spec


def test_a_plan_that_needs_several_epochs_is_timed_by_one() -> None:
    plan = {"epochs": 8, "warmup": 2, "schedule": "steps", "milestones": "4,6", "augment": "flip"}
    asked = spec("finetune", "synthetic", network="mlp", tasks=2, plan=plan)
    found = estimate_run(asked, open_stream(asked, None), torch.device("cpu"), 1)
    assert found.epochs == 8
