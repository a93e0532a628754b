"""PAT: projected adversarial training.

Each image is moved, within a small ball around it, to where the loss is higher; the gradient of the loss there is
projected away from what old tasks use, as GPM does. The network learns to resist attacks, and later tasks do not undo
what earlier ones have learned of it.

    δ₀ ~ U(−ε, ε) in pixels;  δ = Π(δ₀ + 1.25 ε sign ∇ₓ L(W, x + δ₀));  ΔW = −η P ∇_W L(W, x + δ),  P(G) = G − G M Mᵀ

Π clips to the ball and to pixels in [0, 1]. The attack is that which every method can take (`Method.attacked`, called
for each batch before the gradient is taken); here it is on from the start.
"""

from perdure.methods.gpm import GPM
from perdure.nets.network import Network
from perdure.schema import Bytes, Count, Share, Strength


class PAT(GPM):
    def __init__(
        self,
        net: Network,
        *,
        attack: Strength | None = 4 / 255,  # how far each pixel of a training image may be moved against it
        attack_steps: Count = 1,  # steps of that attack, from a random start; each costs a pass forward and back
        attack_guard: bool = True,  # whether more steps are taken once these no longer show what stronger attacks do
        noise: Strength | None = None,  # standard deviation, in pixels, of Gaussian noise on training images; none: no
        threshold: Share = 0.97,  # ε: share of each layer's input energy that is protected
        threshold_step: Share = 0.003,  # what ε gains with each task
        samples: Count = 125,  # n: training images whose layer inputs are remembered
        budget: Bytes | None = None,  # most bytes of bases; none sets no limit
    ) -> None:
        super().__init__(
            net,
            threshold=threshold,
            threshold_step=threshold_step,
            samples=samples,
            budget=budget,
            attack=attack,
            attack_steps=attack_steps,
            attack_guard=attack_guard,
            noise=noise,
        )
