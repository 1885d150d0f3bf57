"""A hook to one that acts in the thread that opened it alone: a model may be shared by threads, its changes are not."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

Hook = Callable[..., Any]  # a module, its inputs, after the pass its output → what replaces them, or None


def in_this_thread(hook: Hook) -> Hook:
    """The same hook, which leaves passes of other threads through the module as they are."""
    owner = threading.get_ident()

    def own(*args: Any) -> Any:
        return hook(*args) if threading.get_ident() == owner else None

    return own
