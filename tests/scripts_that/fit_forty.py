"""Fits a batch of 40; beyond that it really asks the allocator for more than there is."""

import runpy
import sys
from pathlib import Path

batch = int(sys.argv[sys.argv.index("--batch-per-worker") + 1])
script = "take_a_second.py" if batch <= 40 else "run_out_of_memory.py"
runpy.run_path(str(Path(__file__).with_name(script)))
