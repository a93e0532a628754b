"""perdure: robust continual learning.

What the command line does, as functions that return data:

    run           train a method on a benchmark                 perdure run
    study         methods × benchmarks × seeds, compared        perdure study
    probe         measure finished runs                         perdure probe
    search        hyperparameters, chosen on validation data    perdure search
    runs          list the runs of a store                      perdure ls runs
    export_runs   finished runs as one table                    perdure export-runs
    bench         speed on this machine, as ratios              perdure bench
    data.check    are the image files complete?                 perdure data check

To train in your own way: Network, Method, Plan, learn, fit, evaluate, and the types of data, Stream, Task, Lesson,
Split, Batch. Everything loads on first use, so that importing perdure takes milliseconds and does not import torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # for editors and type checkers
    from perdure.errors import PerdureError as PerdureError
    from perdure.lab.bench import bench as bench
    from perdure.lab.export import export_runs as export_runs
    from perdure.lab.index import runs as runs
    from perdure.lab.probe_runs import probe as probe
    from perdure.lab.run import run as run
    from perdure.lab.search import search as search
    from perdure.lab.study import study as study
    from perdure.methods.method import Method as Method
    from perdure.nets.network import Network as Network
    from perdure.train.evaluate import evaluate as evaluate
    from perdure.train.fit import fit as fit
    from perdure.train.learn import learn as learn
    from perdure.train.plan import Plan as Plan
    from perdure.types import Batch as Batch
    from perdure.types import Lesson as Lesson
    from perdure.types import Split as Split
    from perdure.types import Stream as Stream
    from perdure.types import Task as Task

__version__ = "0.1.0"

_MODULES = {
    "run": "perdure.lab.run",
    "study": "perdure.lab.study",
    "probe": "perdure.lab.probe_runs",
    "search": "perdure.lab.search",
    "runs": "perdure.lab.index",
    "export_runs": "perdure.lab.export",
    "bench": "perdure.lab.bench",
    "Network": "perdure.nets.network",
    "Method": "perdure.methods.method",
    "Plan": "perdure.train.plan",
    "learn": "perdure.train.learn",
    "fit": "perdure.train.fit",
    "evaluate": "perdure.train.evaluate",
    **dict.fromkeys(("Batch", "Lesson", "Split", "Stream", "Task"), "perdure.types"),
    "PerdureError": "perdure.errors",
}

__all__ = [*_MODULES, "__version__"]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    if name in ("data", "fast"):  # perdure.data.check, perdure.fast.without
        return import_module(f"perdure.{name}")
    raise AttributeError(f"module 'perdure' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
