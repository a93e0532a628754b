"""What the attacks of other libraries do to a small model, recorded for tests/ops/test_attacks.py.

    python -m venv others
    others/bin/pip install torch==2.13.0 numpy scipy scikit-learn GitPython requests packaging six tqdm
    others/bin/pip install --no-deps foolbox==3.3.4 eagerpy==0.30.0 torchattacks==3.5.1 pyautoattack==0.2.0 \
        adversarial-robustness-toolbox==1.20.1
    others/bin/python benchmarks/attack_vectors.py

Of perdure it needs nothing. The model, the images and the starting points are made of whole numbers, so that they are
the same with every version of torch; the libraries' own draws are not, and what depends on them is recorded as
accuracies and losses only.
"""

import argparse
import json
import warnings
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

OUT = Path(__file__).parents[1] / "tests" / "ops" / "attack_vectors.json"
CLASSES, IMAGES, SHAPE, FILTERS = 5, 100, (3, 8, 8), 8
SHOWN = 4  # images whose pixels are recorded
RADIUS = {"linf": 4 / 255, "l2": 0.2}
RATE = {"linf": 1 / 255, "l2": 0.05}  # of PGD
STEPS, AUTO_STEPS, QUERIES, SEEDS = 10, 100, 150, 5
FEW, FAB_STEPS = 40, 25  # images that are attacked towards each wrong class, and how many steps FAB takes

Vector = dict[str, Any]


# --- what is attacked ---


def numbers(seed: int, *shape: int) -> Tensor:
    """Between 0 and 1, by a linear congruential generator (with the constants of Numerical Recipes): exact on every
    machine."""
    state, found = seed, []
    for _ in range(torch.Size(shape).numel()):
        state = (1664525 * state + 1013904223) % 2**32
        found.append(state / 2**32)
    return torch.tensor(found, dtype=torch.float64).view(shape)


class Small(nn.Module):
    """A convolution and a linear layer. Smooth, so that no gradient depends on which side of a kink rounding falls;
    and bent enough for many steps to find more than one."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(SHAPE[0], FILTERS, 3)
        self.linear = nn.Linear(FILTERS * (SHAPE[1] - 2) * (SHAPE[2] - 2), CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.linear(torch.tanh(self.convolution(x)).flatten(1))
        return logits


def model() -> Small:
    """In double precision, with fixed weights."""
    made = Small().double().requires_grad_(False)
    for layer, seed, size in ((made.convolution, 1, 20.0), (made.linear, 2, 3.0)):
        fan_in = layer.weight[0].numel()
        layer.weight.copy_((2 * numbers(seed, *layer.weight.shape) - 1) * size / fan_in**0.5)
        layer.bias.copy_(2 * numbers(seed + 10, *layer.bias.shape) - 1)
    return made.eval()


def images() -> tuple[Tensor, Tensor]:
    """Pixels, and as labels what the model answers; of every tenth image another."""
    x = numbers(100, IMAGES, *SHAPE)
    y = model()(x).argmax(1)
    y[9::10] = (y[9::10] + 1) % CLASSES
    return x, y


def starts(norm: str) -> Tensor:
    """A point in the ball around each image, within the bounds."""
    x, _ = images()
    change = 2 * numbers(200, *x.shape) - 1
    if norm == "l2":
        change = change / (2 * change.flatten(1).norm(dim=1).view(-1, 1, 1, 1))
    return (x + RADIUS[norm] * change).clamp(0, 1)


# --- what is recorded ---


def losses(moved: Tensor) -> Tensor:
    """Cross-entropy of each image."""
    return F.cross_entropy(model()(moved.double()), images()[1], reduction="none")


def right(moved: Tensor) -> int:
    """How many are answered right."""
    return int((model()(moved.double()).argmax(1) == images()[1]).sum())


def lead(moved: Tensor) -> float:
    """By how much the right class leads the others, 0 where it does not; mean over images."""
    logits, y = model()(moved.double()), images()[1][:, None]
    ahead = logits.gather(1, y)[:, 0] - logits.scatter(1, y, -torch.inf).amax(1)
    return float(ahead.clamp_min(0).mean())


def rounded(values: Tensor) -> list[float]:
    return [float(f"{value:.9g}") for value in values.flatten().tolist()]


def exact(library: str, attack: str, norm: str, moved: Tensor, settings: Vector) -> Vector:
    """Of an attack without chance: the loss of every image, and the pixels of some."""
    found = {"right": right(moved), "loss": rounded(losses(moved)), "pixels": [rounded(one) for one in moved[:SHOWN]]}
    return {"library": library, "attack": attack, "norm": norm, "settings": settings, **found}


# --- the libraries ---


def by_foolbox() -> list[Vector]:
    import foolbox

    x, y = images()
    victim = foolbox.PyTorchModel(model(), bounds=(0, 1), device=x.device)
    one_step = {"linf": foolbox.attacks.LinfFastGradientAttack, "l2": foolbox.attacks.L2FastGradientAttack}
    many = {"linf": foolbox.attacks.LinfBasicIterativeAttack, "l2": foolbox.attacks.L2BasicIterativeAttack}
    found = []
    for norm, radius in RADIUS.items():
        steps = {"abs_stepsize": RATE[norm], "steps": STEPS, "random_start": False}
        for name, attack, settings in (("fgsm", one_step[norm](), {}), ("pgd", many[norm](**steps), steps)):
            _, moved, _ = attack(victim, x, y, epsilons=radius)
            found.append(exact("foolbox", name, norm, moved, {"epsilons": radius, **settings}))
    return found


def by_torchattacks() -> list[Vector]:
    import torchattacks

    x, y = images()
    one_step: Vector = {"eps": RADIUS["linf"]}
    found = [exact("torchattacks", "fgsm", "linf", torchattacks.FGSM(model(), **one_step)(x, y), one_step)]
    for norm, attack in (("linf", torchattacks.PGD), ("l2", torchattacks.PGDL2)):
        settings = {"eps": RADIUS[norm], "alpha": RATE[norm], "steps": STEPS, "random_start": False}
        found.append(exact("torchattacks", "pgd", norm, attack(model(), **settings)(x, y), settings))
    return found


def by_art() -> list[Vector]:
    """In single precision, as ART has it. Its l2 PGD puts images within the bounds before it puts them back into the
    ball, others afterwards: left out."""
    from art.attacks.evasion import FastGradientMethod, ProjectedGradientDescent
    from art.estimators.classification import PyTorchClassifier

    x, y = (tensor.numpy() for tensor in images())
    victim = PyTorchClassifier(
        model().float(),
        loss=nn.CrossEntropyLoss(),
        input_shape=SHAPE,
        nb_classes=CLASSES,
        clip_values=(0, 1),
        device_type="cpu",
    )
    steps = {"eps_step": RATE["linf"], "max_iter": STEPS, "num_random_init": 0}
    found = []
    for name, norm, order, attack, settings in (
        ("fgsm", "linf", "inf", FastGradientMethod, {}),
        ("fgsm", "l2", 2, FastGradientMethod, {}),
        ("pgd", "linf", "inf", ProjectedGradientDescent, {**steps, "verbose": False}),
    ):
        own = {"norm": order, "eps": RADIUS[norm], "batch_size": IMAGES, **settings}
        moved = torch.from_numpy(attack(victim, **own).generate(x.astype("float32"), y))
        found.append(exact("adversarial-robustness-toolbox", name, norm, moved, own))
    return found


def by_autoattack() -> list[Vector]:
    """APGD from starts that are given, since its draws are its own affair: the highest loss of each image, and how many
    were right wherever it was. Square twice, for its windows never reach the last row and column: as it is, and with
    windows that do."""
    from pyautoattack.autopgd_base import APGDAttack
    from pyautoattack.square import SquareAttack

    class ToTheEdge(SquareAttack):
        def random_int(self, low: int = 0, high: int = 1, shape: Any = (1,)) -> Any:
            return super().random_int(low, high + 1, shape)

    x, y = images()
    found = []
    for norm, name in (("linf", "Linf"), ("l2", "L2")):
        for loss in ("ce", "dlr"):
            settings = {"norm": name, "eps": RADIUS[norm], "n_iter": AUTO_STEPS, "loss": loss, "rho": 0.75}
            climb = APGDAttack(model(), **settings)
            climb.init_hyperparam(x)
            _, always_right, highest, _ = climb.attack_single_run(x, y, x_init=starts(norm))
            robust = int((always_right & (model()(x).argmax(1) == y)).sum())
            found.append(
                {
                    "library": "pyautoattack",
                    "attack": f"apgd-{loss}",
                    "norm": norm,
                    "settings": settings,
                    "right": robust,
                    "loss": rounded(highest),
                }
            )
        for kind, attack in (("square", SquareAttack), ("square to the edge", ToTheEdge)):
            settings = {"norm": name, "eps": RADIUS[norm], "n_queries": QUERIES, "p_init": 0.8, "loss": "margin"}
            square, moved = attack(model(), **settings), []
            square.init_hyperparam(x)
            for seed in range(SEEDS):
                torch.manual_seed(seed)
                moved.append(square.attack_single_run(x, y)[1])  # unlike `perturb`, also of images that it did not fool
            found.append(
                {
                    "library": "pyautoattack",
                    "attack": kind,
                    "norm": norm,
                    "settings": {**settings, "seeds": SEEDS},
                    "right": [right(one) for one in moved],
                    "lead": [lead(one) for one in moved],
                }
            )
    return found


def by_autoattack_targeted() -> list[Vector]:
    """Of the first few images. APGD-T from starts that are given, towards the most likely wrong class of each image,
    then the next, and so on: the highest loss of each image towards any of them. FAB-T, in single precision, as it is
    there: how far its nearest wrong answer is, 0 for images that are wrong as they are, none where none was found."""
    from pyautoattack.autopgd_base import APGDAttack_targeted
    from pyautoattack.fab_pt import FABAttack_PT

    x, y = (part[:FEW] for part in images())
    clean = model()(x)
    answered = clean.argmax(1) == y
    ranked = clean.scatter(1, y[:, None], -torch.inf).argsort(1, descending=True)[:, : CLASSES - 1]
    found = []
    for norm, name in (("linf", "Linf"), ("l2", "L2")):
        settings = {"norm": name, "eps": RADIUS[norm], "n_iter": AUTO_STEPS, "rho": 0.75}
        climb = APGDAttack_targeted(model(), **settings, n_target_classes=CLASSES - 1)
        climb.init_hyperparam(x)
        robust, highest = answered.clone(), []
        for target in ranked.T:
            climb.y_target = target
            _, always_right, loss, _ = climb.attack_single_run(x, y, x_init=starts(norm)[:FEW])
            robust &= always_right
            highest.append(loss)
        about = {"library": "pyautoattack", "norm": norm, "settings": {**settings, "n_target_classes": CLASSES - 1}}
        top = torch.stack(highest).amax(0)
        found.append({**about, "attack": "apgd-t", "right": int(robust.sum()), "loss": rounded(top)})
        torch.set_default_dtype(torch.float32)
        single = model().float()
        near = FABAttack_PT(single, norm=name, n_iter=FAB_STEPS, eps=RADIUS[norm], n_target_classes=CLASSES - 1)
        least = torch.where(answered, torch.inf, 0.0).double()
        for place in range(2, CLASSES + 1):
            near.target_class = place  # its own count: 1 is the answer itself
            moved = near.attack_single_run(x.float(), y, is_targeted=True)
            change = (moved - x.float()).double().flatten(1)
            far = change.abs().amax(1) if norm == "linf" else change.norm(dim=1)
            least = torch.where(answered & (single(moved).argmax(1) != y), torch.minimum(far, least), least)
        torch.set_default_dtype(torch.float64)
        settings = {"norm": name, "n_iter": FAB_STEPS, "n_target_classes": CLASSES - 1}
        distances = [value if value < torch.inf else None for value in rounded(least)]
        farther = int((least > RADIUS[norm]).sum())
        found.append({**about, "settings": settings, "attack": "fab-t", "right": farther, "distance": distances})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    warnings.simplefilter("ignore")  # the libraries' own
    torch.set_default_dtype(torch.float64)  # of what libraries make on the way: rounding would decide about steps
    vectors = [*by_foolbox(), *by_torchattacks(), *by_art(), *by_autoattack(), *by_autoattack_targeted()]
    libraries = ["torch", *dict.fromkeys(vector["library"] for vector in vectors)]
    about = {"made by": "benchmarks/attack_vectors.py", "versions": {name: version(name) for name in libraries}}
    clean = {"right": right(images()[0]), "loss": rounded(losses(images()[0]))}
    lines = ",\n".join(json.dumps(vector) for vector in vectors)
    args.out.write_text(f'{{"about": {json.dumps(about)},\n"clean": {json.dumps(clean)},\n"vectors": [\n{lines}\n]}}\n')
    for vector in vectors:
        print(vector["library"], vector["attack"], vector["norm"], vector["right"])
    print(args.out, f"{args.out.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
