"""Says that it is out of memory from a batch of FAILS_FROM on; below, a whole report at once."""

import json
import os
import runpy
import sys
from pathlib import Path

batch = int(sys.argv[sys.argv.index("--batch-per-worker") + 1])
if batch >= int(os.environ["FAILS_FROM"]):
    folder = Path(sys.argv[sys.argv.index("--record") + 1]) / "ranks"
    folder.mkdir(parents=True)
    said = {"rank": 0, "at": 1.5, "type": "MemoryError", "message": "too much", "traceback": "", "oom": True}
    (folder / "error-0.json").write_text(json.dumps(said))
    sys.exit(1)
runpy.run_path(str(Path(__file__).with_name("take_a_second.py")))
