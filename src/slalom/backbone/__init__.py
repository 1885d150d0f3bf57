"""1: prompt → tokens → LM → draft."""
