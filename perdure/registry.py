"""Names → things. The tables of contents of the package, and the door for other packages.

Nothing is imported before it is asked for, so that listing names does not import torch. Another package joins by an
entry point in the group `perdure.methods` (or networks, benchmarks, probes):

    [project.entry-points."perdure.methods"]
    mine = "my_package.mine:Mine"
"""

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from perdure.errors import UnknownName


@dataclass(frozen=True)
class Entry:
    where: str  # "module:name"
    about: str

    def load(self) -> Any:
        module, _, name = self.where.partition(":")
        return getattr(import_module(module), name)


class Registry:
    def __init__(self, kind: str, entries: dict[str, Entry]) -> None:
        self.kind = kind
        self._own = entries

    def entries(self) -> dict[str, Entry]:
        """Own things first, then those of other packages; an own name cannot be taken."""
        others = entry_points(group=f"perdure.{self.kind}s")
        return {**{e.name: Entry(e.value, f"from {e.dist.name if e.dist else e.value}") for e in others}, **self._own}

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries())

    def find(self, name: str) -> Entry:
        known = self.entries()
        if name not in known:
            raise UnknownName(self.kind, name, known)
        return known[name]

    def load(self, name: str) -> Any:
        return self.find(name).load()


methods = Registry(
    "method",
    {
        "finetune": Entry("perdure.methods.finetune:FineTune", "plain SGD, task after task: the lower bound"),
        "mtl": Entry("perdure.methods.mtl:MTL", "all tasks at once: the upper bound, not a continual learner"),
        "ewc": Entry("perdure.methods.ewc:EWC", "elastic weight consolidation (Kirkpatrick et al. 2017)"),
        "er": Entry("perdure.methods.er:ER", "experience replay from a reservoir (Chaudhry et al. 2019)"),
        "agem": Entry("perdure.methods.agem:AGEM", "averaged gradient episodic memory (Chaudhry et al. 2019)"),
        "owm": Entry("perdure.methods.owm:OWM", "orthogonal weights modification (Zeng et al. 2019)"),
        "gpm": Entry("perdure.methods.gpm:GPM", "gradient projection memory (Saha et al. 2021)"),
        "trgp": Entry("perdure.methods.trgp:TRGP", "trust region gradient projection (Lin et al. 2022)"),
        "fsdgpm": Entry("perdure.methods.fsdgpm:FSDGPM", "flattened, dynamic gradient projection (Deng et al. 2021)"),
        "api": Entry("perdure.methods.api:API", "adaptive plasticity improvement (Liang and Li 2023)"),
        "dfgp": Entry("perdure.methods.dfgp:DFGP", "data-augmented flat gradient projection (Yang et al. 2023)"),
        "rcl": Entry("perdure.methods.rcl:RCL", "robust features, robust weights, projected gradient (the paper)"),
    },
)

networks = Registry(
    "network",
    {
        "alexnet": Entry("perdure.nets.alexnet:AlexNet", "five layers, 6.5 M weights (CIFAR-100 in the papers)"),
        "alexnet-slim": Entry("perdure.nets.alexnet:SlimAlexNet", "the same, 16-32-64 filters and 256 units"),
        "resnet18": Entry("perdure.nets.resnet18:ResNet18", "reduced, 20-160 filters (5-Datasets, MiniImageNet)"),
        "mlp": Entry("perdure.nets.mlp:MLP", "linear layers and ReLU"),
    },
)

benchmarks = Registry(
    "benchmark",
    {
        "six": Entry("perdure.data.benchmarks.six:six", "six tasks of five classes, shipped in the package"),
        "cifar100": Entry("perdure.data.benchmarks.cifar100:cifar100", "Split CIFAR-100: ten tasks of ten classes"),
        "five": Entry("perdure.data.benchmarks.five:five", "CIFAR-10, MNIST, SVHN, Fashion-MNIST, notMNIST"),
        "miniimagenet": Entry(
            "perdure.data.benchmarks.miniimagenet:miniimagenet", "Split MiniImageNet: twenty tasks of five classes"
        ),
        "pmnist": Entry("perdure.data.benchmarks.pmnist:pmnist", "permuted MNIST: ten tasks of ten digits"),
        "folder": Entry("perdure.data.benchmarks.folder:folder", "your own images as folder:PATH, one folder per task"),
        "synthetic": Entry("perdure.data.benchmarks.synthetic:synthetic", "made on the spot in no time, for tests"),
    },
)

probes = Registry(
    "probe",
    {
        "fgsm": Entry("perdure.probes.robustness:FGSM", "accuracy under one-step attacks"),
        "pgd": Entry("perdure.probes.robustness:PGD", "accuracy under attacks of many steps"),
        "apgd": Entry(
            "perdure.probes.robustness:APGD", "accuracy under attacks that choose their steps, by two losses"
        ),
        "square": Entry("perdure.probes.robustness:Square", "accuracy under a black-box attack by random squares"),
        "noise": Entry("perdure.probes.robustness:Noise", "accuracy under random noise of an attack's size"),
        "masking": Entry("perdure.probes.masking:Masking", "is the robustness real, or are gradients masked?"),
        "transfer": Entry("perdure.probes.transfer:Transfer", "attacks made on one run and tried on others"),
        "over-time": Entry("perdure.probes.over_time:OverTime", "robust accuracy of each task over time"),
        "corruption": Entry("perdure.probes.corruption:Corruption", "accuracy on noisy, blurred, foggy … images"),
        "outliers": Entry("perdure.probes.outliers:Outliers", "what outliers do to losses and gradients (Eqs. 2–4)"),
        "flatness": Entry(
            "perdure.probes.flatness:Flatness", "how far the loss can rise near the weights (Eq. 5), and SAM's"
        ),
        "curvature": Entry("perdure.probes.flatness:Curvature", "largest eigenvalue and trace of the loss's Hessian"),
        "landscape": Entry("perdure.probes.landscape:Landscape", "the loss along random directions of the weights"),
        "plane": Entry("perdure.probes.landscape:Plane", "the loss in a random plane of the weights"),
        "geometry": Entry(
            "perdure.probes.geometry:Geometry", "how features lie on the sphere: spread, aligned, overlapping"
        ),
        "capacity": Entry("perdure.probes.capacity:Capacity", "how full each layer is, and how many more tasks fit"),
        "calibration": Entry("perdure.probes.calibration:Calibration", "whether confidence is worth what it says"),
    },
)
