"""3: effects → bias tokens → next draft."""

from slalom.decoding.dab import DAB

SAMPLERS = {"dab": DAB}

__all__ = ["DAB", "SAMPLERS"]
