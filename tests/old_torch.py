"""Skips tests of what the installed torch is too old for, as a plan would say: `make test-long PART=floor`."""

from __future__ import annotations

import pytest
import torch

from scaling_study.study.support import too_old
from scaling_study.trial import Trial


def skip_if_too_old_for(trial: Trial) -> None:
    if why := too_old(trial, {"torch": torch.__version__}):
        pytest.skip(why)
