"""3: effects → bias tokens → next draft."""

from slalom.decoding.dab import DAB
from slalom.decoding.sampler import Sampler

SAMPLERS: dict[str, type[Sampler]] = {"dab": DAB}

__all__ = ["DAB", "SAMPLERS"]
