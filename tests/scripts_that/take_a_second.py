"""A whole report after one second, with no library to import: what is left is the driver's own time.

SLEEP_SECONDS sleeps for another time. (Not SECONDS: that one a shell counts up by itself.)
"""

import json
import os
import sys
import time

folder = sys.argv[sys.argv.index("--record") + 1]
batch = int(sys.argv[sys.argv.index("--batch-per-worker") + 1])
time.sleep(float(os.environ.get("SLEEP_SECONDS", "1")))
report = {
    "rank": 0, "world_size": 1, "local_rank": 0, "host": "", "pid": os.getpid(), "device": "cpu", "device_name": "",
    "cores": [], "threads": 1, "first_step_at": time.time(), "warmup_seconds": [0.1] * 5, "step_seconds": [0.1] * 100,
    "samples_per_step": batch, "samples_seen": 100 * batch, "tokens_seen": None, "phases": None, "parameters": 1,
    "allreduce_bytes": 0, "communication_bytes": {}, "peak_memory_bytes": None, "memory": {}, "loss_first": None,
    "loss_last": None, "data_source": "none", "steps_per_epoch": 1, "gpu_utilization_percent": None,
    "energy_joules": None, "backend": {}, "versions": {}, "notes": [],
}  # fmt: skip
os.makedirs(f"{folder}/ranks", exist_ok=True)
with open(f"{folder}/ranks/rank-0.json", "w", encoding="utf-8") as stream:
    json.dump(report, stream)
