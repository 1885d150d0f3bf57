"""HTTP requests to steered texts: an OpenAI-compatible server, `slalom serve`."""
