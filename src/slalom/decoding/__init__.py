"""3: requests → drafts → each row's best text."""

from slalom.decoding.best_of_n import BestOfN
from slalom.decoding.bolt import BOLT, NormalisedBOLT
from slalom.decoding.climb import Climb
from slalom.decoding.cold import COLD
from slalom.decoding.dab import DAB
from slalom.decoding.lm_steer import LMSteer
from slalom.decoding.mucola import MuCoLa
from slalom.decoding.none import Unsteered
from slalom.decoding.rerank import Rerank
from slalom.decoding.sampler import Sampler

SAMPLERS: dict[str, type[Sampler]] = {
    "climb": Climb,
    "dab": DAB,
    "bolt": BOLT,
    "bolt-normalised": NormalisedBOLT,
    "cold": COLD,
    "mucola": MuCoLa,
    "lm-steer": LMSteer,
    "rerank": Rerank,
    "best-of-n": BestOfN,
    "none": Unsteered,
}

__all__ = [
    "BOLT",
    "COLD",
    "DAB",
    "SAMPLERS",
    "BestOfN",
    "Climb",
    "LMSteer",
    "MuCoLa",
    "NormalisedBOLT",
    "Rerank",
    "Unsteered",
]
