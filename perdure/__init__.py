"""perdure: robust continual learning.

What the command line does, as functions that return data:

    run           train a method on a benchmark                 perdure run
    compare       methods over seeds, side by side              perdure compare
    study         a grid of runs from a file                    perdure study
    search        hyperparameters, chosen on validation data    perdure search
    probe         measure finished runs                         perdure probe
    load          a finished run: look, predict, learn more
    plot          pictures of runs, studies and what `learn` returns
    write_report  one page of runs or of a study                perdure report
    runs          list the runs of a store                      perdure ls runs
    export_runs   finished runs as one table                    perdure export-runs
    bench         speed on this machine, as ratios              perdure bench

What there is: catalog (everything), benchmarks, datasets; benchmark(name) opens one, data.check(name) examines its
files. Your own methods, networks, benchmarks and probes: in place of a name give `my.py:Careful`, the class itself, or
what you have given to register.

Any torch module as a network: wrap(model, shape); coverage tells what of it is protected. Projector protects it in a
training loop of yours.

A classifier in a directory that learns task after task, with a gate before each release: Learner.

To train in your own way: Network (around a Backbone), Method, Plan, learn, fit, evaluate, and the types of data,
Stream, Task, Lesson, Split, Batch. What goes wrong on purpose is a PerdureError, whose message says what to do.

Everything loads on first use, so that importing perdure takes milliseconds and does not import torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # for editors and type checkers
    from perdure.errors import PerdureError as PerdureError
    from perdure.lab.bench import bench as bench
    from perdure.lab.catalog import benchmark as benchmark
    from perdure.lab.catalog import benchmarks as benchmarks
    from perdure.lab.catalog import catalog as catalog
    from perdure.lab.catalog import datasets as datasets
    from perdure.lab.export import export_runs as export_runs
    from perdure.lab.index import runs as runs
    from perdure.lab.load import load as load
    from perdure.lab.probe_runs import probe as probe
    from perdure.lab.report import write_report as write_report
    from perdure.lab.run import run as run
    from perdure.lab.search import search as search
    from perdure.lab.study import compare as compare
    from perdure.lab.study import study as study
    from perdure.learner.learner import Learner as Learner
    from perdure.methods.method import Method as Method
    from perdure.nets.network import Backbone as Backbone
    from perdure.nets.network import Network as Network
    from perdure.nets.wrap import coverage as coverage
    from perdure.nets.wrap import wrap as wrap
    from perdure.registry import register as register
    from perdure.report.plot import plot as plot
    from perdure.train.evaluate import evaluate as evaluate
    from perdure.train.fit import fit as fit
    from perdure.train.learn import learn as learn
    from perdure.train.plan import Plan as Plan
    from perdure.train.projector import Projector as Projector
    from perdure.types import Batch as Batch
    from perdure.types import Lesson as Lesson
    from perdure.types import Split as Split
    from perdure.types import Stream as Stream
    from perdure.types import Task as Task

__version__ = "0.1.0"

_MODULES = {
    "run": "perdure.lab.run",
    "compare": "perdure.lab.study",
    "study": "perdure.lab.study",
    "search": "perdure.lab.search",
    "probe": "perdure.lab.probe_runs",
    "load": "perdure.lab.load",
    "plot": "perdure.report.plot",
    "runs": "perdure.lab.index",
    "export_runs": "perdure.lab.export",
    "write_report": "perdure.lab.report",
    "bench": "perdure.lab.bench",
    **dict.fromkeys(("catalog", "benchmark", "benchmarks", "datasets"), "perdure.lab.catalog"),
    "Learner": "perdure.learner.learner",
    "register": "perdure.registry",
    "wrap": "perdure.nets.wrap",
    "coverage": "perdure.nets.wrap",
    "Projector": "perdure.train.projector",
    "Network": "perdure.nets.network",
    "Backbone": "perdure.nets.network",
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
