"""Garbage is not looked for while a program imports, and is as before afterwards."""

from __future__ import annotations

import contextlib
import gc

from slalom.backbone.importing import without_collection


def test_garbage_is_looked_for_again_after_an_import_that_failed() -> None:
    meanwhile = []
    with contextlib.suppress(ImportError), without_collection():
        meanwhile.append(gc.isenabled())
        raise ImportError
    assert meanwhile == [False]
    assert gc.isenabled()


def test_a_program_that_collects_no_garbage_goes_on_so() -> None:
    gc.disable()
    try:
        with without_collection():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
