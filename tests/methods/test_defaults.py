"""The values that methods have where neither a preset nor anybody sets them: those of the papers' CIFAR-100 runs."""

from typing import Any

import pytest

from perdure import registry
from perdure.schema import values_of

SHARED: dict[str, Any] = {"attack": None, "attack_steps": 1, "attack_guard": True, "noise": None}
BASES: dict[str, Any] = {"threshold": 0.97, "threshold_step": 0.003, "samples": 125}
MIXING: dict[str, Any] = {"threshold_step": 0.0, "samples": 125, "concentration": 20.0, "mix_weight": 0.1}
DEFAULTS: dict[str, dict[str, Any]] = {
    "finetune": {},
    "mtl": {"batches": "mixed"},
    "ewc": {"coefficient": 5000.0, "clip": 100.0, "fisher_batch": 20},
    "er": {"memory": 2000, "replay_batch": 64, "batches": "mixed", "clip": None},
    "agem": {"memory": 2000, "replay_batch": 64},
    "owm": {"regularizer": 1.0, "conv_decay": 1e-5, "first_linear_decay": 1e-4, "linear_decay": 1e-2, "clip": 10.0}
    | {"patch_stride": None},
    "gpm": BASES | {"variant": "released", "budget": None},
    "pat": BASES | {"attack": 4 / 255, "budget": None},
    "sgp": BASES | {"scale": 10.0},
    "trgp": BASES | {"related": 2, "trust": 0.5, "trust_samples": 125, "learn_norms": False, "variant": "released"},
    "fsdgpm": BASES
    | {"memory": 1000, "look_ahead": 0.001, "soft_rate": 0.01, "soft_momentum": 0.9, "sharpness": 10.0, "limit": 2.0}
    | {"pieces": 2, "second_order": True, "learn_norms": False, "variant": "released"},
    "api": BASES | {"floor": 0.5, "growth": 10.0, "variant": "released"},
    "dfgp": MIXING | {"threshold": 0.95, "radius": 0.05, "variant": "released", "budget": None},
    "rcl": MIXING
    | {"threshold": 0.94, "ua_weight": 1.0, "ua_in": "both", "features": "separate", "radius": 0.05, "eq8": False}
    | {"phi_init": 1e-4, "phi_steps": 200, "phi_rate": 0.1, "phi_cap": None, "variant": "released", "budget": None},
}


def test_all_methods_are_here() -> None:
    assert DEFAULTS.keys() == {*registry.methods}


@pytest.mark.parametrize("name", sorted(DEFAULTS))
def test_values_of_a_method(name: str) -> None:
    found = {key: value.default for key, value in values_of(registry.methods.load(name)).items()}
    assert found == SHARED | DEFAULTS[name]
