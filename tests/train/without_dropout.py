"""Run a script without dropout, which no two ranks have alike: `python without_dropout.py SCRIPT FLAGS`."""

from __future__ import annotations

import runpy
import sys

from scaling_study.workloads import transformer_lm

if __name__ == "__main__":
    transformer_lm.DROPOUT = 0.0
    del sys.argv[0]
    runpy.run_path(sys.argv[0], run_name="__main__")
