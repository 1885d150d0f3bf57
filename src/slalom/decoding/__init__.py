"""3: effects → bias tokens → next draft."""

from slalom.decoding.cold import COLD
from slalom.decoding.dab import DAB
from slalom.decoding.mucola import MuCoLa
from slalom.decoding.sampler import Sampler

SAMPLERS: dict[str, type[Sampler]] = {"dab": DAB, "cold": COLD, "mucola": MuCoLa}

__all__ = ["COLD", "DAB", "SAMPLERS", "MuCoLa"]
