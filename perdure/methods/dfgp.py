"""DFGP: Data-augmented Flat Gradient Projection (Yang et al., ICCV 2023).

RCL without its two additions: no spreading of the features, no noise on the first weights.
"""

from perdure.methods.rcl import RCL
from perdure.nets.network import Network
from perdure.schema import Bytes, Count, Positive, Share, Variant, Weight


class DFGP(RCL):
    def __init__(
        self,
        net: Network,
        *,
        threshold: Share = 0.95,  # ε: share of each layer's input energy that is protected
        threshold_step: Share = 0.0,  # what ε gains with each task
        samples: Count = 125,  # n: training images whose layer inputs are remembered
        concentration: Positive = 20.0,  # α: mixing shares are drawn from Beta(α, α)
        mix_weight: Weight = 0.1,  # λ: weight of the loss on mixed images
        radius: Weight = 0.05,  # ρ: size of the worst-case steps of weights and mixing
        variant: Variant = "released",  # where paper and released code differ, which to follow
        budget: Bytes | None = None,  # most bytes of bases; none sets no limit
    ) -> None:
        super().__init__(
            net,
            threshold=threshold,
            threshold_step=threshold_step,
            samples=samples,
            concentration=concentration,
            mix_weight=mix_weight,
            spread_weight=0.0,
            radius=radius,
            noise_range=0.0,
            variant=variant,
            budget=budget,
        )
