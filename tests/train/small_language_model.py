"""Run a script whose language model knows few words and has no dropout, which ranks draw each for themselves:
`python small_language_model.py SCRIPT FLAGS`."""

from __future__ import annotations

import runpy
import sys

from scaling_study.workloads import transformer_lm, wikitext2

WORDS = 128

if __name__ == "__main__":
    transformer_lm.DROPOUT, wikitext2.VOCABULARY = 0.0, WORDS
    del sys.argv[0]
    runpy.run_path(sys.argv[0], run_name="__main__")
