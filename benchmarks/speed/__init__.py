"""What `perdure bench` measures; `perdure.lab.bench` loads it from a clone."""

from .growth import growths as growths
from .paths import gains as gains
from .ratios import ratios as ratios
from .turns import Bench as Bench
