"""3: effects → bias tokens → next draft."""

from slalom.decoding.bolt import BOLT, NormalisedBOLT
from slalom.decoding.dab import DAB
from slalom.decoding.lm_steer import LMSteer
from slalom.decoding.none import Unsteered
from slalom.decoding.sampler import Sampler

SAMPLERS: dict[str, type[Sampler]] = {
    "dab": DAB,
    "bolt": BOLT,
    "bolt-normalised": NormalisedBOLT,
    "lm-steer": LMSteer,
    "none": Unsteered,
}

__all__ = ["BOLT", "DAB", "SAMPLERS", "LMSteer", "NormalisedBOLT", "Unsteered"]
