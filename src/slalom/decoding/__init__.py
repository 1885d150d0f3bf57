"""3: effects → bias tokens → next draft."""

from slalom.decoding.dab import DAB
from slalom.decoding.lm_steer import LMSteer
from slalom.decoding.none import Unsteered
from slalom.decoding.sampler import Sampler

SAMPLERS: dict[str, type[Sampler]] = {"dab": DAB, "lm-steer": LMSteer, "none": Unsteered}

__all__ = ["DAB", "SAMPLERS", "LMSteer", "Unsteered"]
