"""c02: what the networks answer, their features, and what each layer of AlexNet receives."""

import pytest
import torch
from torch import Tensor, nn

from perdure.nets.network import Network
from perdure.ops.layers import layer_inputs

from .golden import (
    CLEARLY,
    DTYPES,
    RECIPE,
    VALUE,
    Case,
    alex,
    alexnet,
    draw,
    resnet,
    resnet18,
    stream,
    tensor,
)

NETWORKS = {"alexnet": "c02_alexnet_forward"}
NETWORKS |= {f"resnet{pixels}": f"c02_resnet18_{pixels}_forward" for pixels in (32, 84)}


def setting(network: str, precision: str) -> tuple[Network, Tensor]:
    dtype, sizes = DTYPES[precision], RECIPE["c02"]
    if network == "alexnet":
        return alexnet(alex(stream(20)), dtype), tensor(draw(stream(21), sizes["alexnet_batch"], 3, 32, 32), dtype)
    pixels = int(network.removeprefix("resnet"))
    x = draw(stream({32: 23, 84: 24}[pixels]), sizes["resnet_batch"], 3, pixels, pixels)
    return resnet18(resnet(stream(22), pixels), pixels, dtype), tensor(x, dtype)


@torch.no_grad()
def answers(net: Network, x: Tensor) -> dict[str, Tensor]:
    looks = [net(x, task) for task in range(len(net.heads))]
    return {f"logits{task}": look.logits for task, look in enumerate(looks)} | {"ua_feature": looks[0].features}


@pytest.mark.parametrize("precision", DTYPES)
@pytest.mark.parametrize("network", NETWORKS)
def test_forward(network: str, precision: str) -> None:
    case, (net, x) = Case(NETWORKS[network]), setting(network, precision)
    found = answers(net, x)
    case.check_all(f"{precision}/", found, VALUE[precision], complete=False)

    inputs = case.names(f"{precision}/input_of_")  # stored for AlexNet alone
    assert case.names(f"{precision}/") == set(found) | {f"input_of_{name}" for name in inputs}
    if inputs:
        with torch.no_grad():
            received = {name: found.x[0] for name, found in layer_inputs(net.backbone, lambda: net(x, 0)).items()}
        case.check_all(f"{precision}/input_of_", received, VALUE[precision])


@pytest.mark.parametrize("network", NETWORKS)
def test_evaluation_mode_uses_batch_statistics_too(network: str) -> None:
    case, (net, x) = Case(NETWORKS[network]), setting(network, "f64")
    case.check_all("f64/", answers(net.eval(), x), VALUE["f64"], complete=False)


@pytest.mark.parametrize("network", NETWORKS)
def test_wrong_variants_are_told_apart(network: str) -> None:
    case, (net, x) = Case(NETWORKS[network]), setting(network, "f64")
    for module in net.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.eps *= 1.01  # a slight change in every layer, and still far outside the tolerance
    for name, value in answers(net, x).items():
        assert case.miss(f"f64/{name}", value, VALUE["f64"]) > CLEARLY
