"""c10: what A-GEM makes of a gradient that conflicts with that of the memory, and of one that does not."""

from collections.abc import Mapping

import numpy as np
import pytest
import torch
from torch import Tensor

from perdure.methods.agem import AGEM, agem_project
from perdure.methods.method import Method
from perdure.nets.mlp import MLP
from perdure.nets.network import Network
from perdure.ops.gradients import dot
from perdure.types import Batch

from .golden import CLEARLY, DTYPES, GRADIENT, RECIPE, VALUE, Case, draw, stream, tensor

LENGTH, MIX = RECIPE["c10"]["agem_length"], RECIPE["c10"]["agem_mix"]


def vectors(kind: str, precision: str) -> tuple[Tensor, Tensor]:
    """The gradient and the memory's, (length,)."""
    rs = stream(101)
    g, b = draw(rs, LENGTH), draw(rs, LENGTH)
    of_g, of_b = (np.float32(share) for share in MIX[kind])
    return tensor(g, DTYPES[precision]), tensor(of_g * g + of_b * b, DTYPES[precision])


def cut(values: Tensor) -> dict[str, Tensor]:
    """A vector as the gradients of several weights: the rule is one over all."""
    return {f"w{number}": part for number, part in enumerate(values.split(LENGTH // 3))}


def joined(values: Mapping[str, Tensor]) -> Tensor:
    return torch.cat([values[name] for name in sorted(values)])


@pytest.mark.parametrize("precision", DTYPES)
@pytest.mark.parametrize("kind", MIX)
def test_rule(kind: str, precision: str) -> None:
    case = Case("c10_agem")
    assert case.names(f"{precision}/") == {f"{kind}/{fact}" for kind in MIX for fact in ("dot", "result")}
    gradient, reference = map(cut, vectors(kind, precision))
    case.check(f"{precision}/{kind}/dot", dot(gradient, reference), VALUE[precision])
    case.check(f"{precision}/{kind}/result", joined(agem_project(gradient, reference)[0]), GRADIENT[precision])


@pytest.mark.parametrize("kind", MIX)
def test_method(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch brings g, the memory r; the memory's batch is told by its size."""
    agem = AGEM(Network(MLP((3, 2, 2))), memory=5, replay_batch=2)
    agem.memory.add(Batch(torch.zeros(5, 3, 2, 2), torch.zeros(5, dtype=torch.int64), 0))
    g, r = map(cut, vectors(kind, "f64"))
    monkeypatch.setattr(Method, "gradient", lambda _self, batch: r if len(batch) == 2 else g)
    found = agem.gradient(Batch(torch.zeros(3, 3, 2, 2), torch.zeros(3, dtype=torch.int64), 1))
    Case("c10_agem").check(f"f64/{kind}/result", joined(found), GRADIENT["f64"])


def test_other_rules_are_told_apart() -> None:
    """One decision and one share per weight; the gradient left as it is; projected on the wrong vector."""
    case, (g, r) = Case("c10_agem"), vectors("conflict", "f64")
    parts = zip(cut(g).items(), cut(r).items(), strict=True)
    each = {name: agem_project({name: mine}, {name: theirs})[0][name] for (name, mine), (_, theirs) in parts}
    for wrong in (joined(each), g, agem_project({"w": r}, {"w": g})[0]["w"]):
        assert case.miss("f64/conflict/result", wrong, GRADIENT["f64"]) > CLEARLY
    g, r = vectors("agree", "f64")
    always = g - (g @ r) / (r @ r) * r
    assert case.miss("f64/agree/result", always, GRADIENT["f64"]) > CLEARLY
