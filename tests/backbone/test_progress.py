"""What is on the screen while we work: our own bars alone, and transformers' settings as they were before."""

from __future__ import annotations

import logging
import sys

import pytest
from transformers.utils import logging as hf_logging

from slalom.backbone.progress import quiet_transformers


def test_silence_ends_with_the_last_who_wants_it_and_stderr_stays_where_it_was(
    capsys: pytest.CaptureFixture[str],
) -> None:
    level, bars = hf_logging.get_verbosity(), hf_logging.is_progress_bar_enabled()
    one, other = quiet_transformers(), quiet_transformers()
    one.__enter__()
    other.__enter__()
    one.__exit__(None, None, None)
    assert (hf_logging.get_verbosity(), hf_logging.is_progress_bar_enabled()) == (logging.ERROR, False)
    print("another thread's", file=sys.stderr)
    other.__exit__(None, None, None)
    assert (hf_logging.get_verbosity(), hf_logging.is_progress_bar_enabled()) == (level, bars)
    assert capsys.readouterr().err == "another thread's\n"


def test_bars_that_were_off_stay_off() -> None:
    hf_logging.disable_progress_bar()
    with quiet_transformers():
        pass
    assert not hf_logging.is_progress_bar_enabled()
    hf_logging.enable_progress_bar()
