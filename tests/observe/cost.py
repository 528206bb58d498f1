"""`python -m tests.observe.cost`: CPU time that the observer adds to a step, and to a call of a submodule.

Each number is the least of seven measurements in each of five pairs of processes, with and without it: CPU time, so
that other work on the machine counts little. Bars: 60 µs a step, 0.5 µs a submodule.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from scaling_study import observe

SUBMODULES = 100
PROGRAM = """
import sys, time, torch
torch.set_num_threads(1)
model = torch.nn.Sequential(*[torch.nn.Identity() for _ in range(int(sys.argv[1]))], torch.nn.Linear(4, 4))
optimizer, x = torch.optim.SGD(model.parameters(), lr=0.01), torch.randn(4, 4)

def seconds(steps):
    began = time.process_time()
    for _ in range(steps):
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
    return (time.process_time() - began) / steps

seconds(300)
print(min(seconds(1000) for _ in range(7)))
"""


def step_seconds(submodules: int, observed: bool) -> float:
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, **(observe.environment(os.environ, Path(folder)) if observed else {})}
        argv = [sys.executable, "-c", PROGRAM, str(submodules)]
        return float(subprocess.run(argv, env=env, capture_output=True, text=True, check=True).stdout)


def added(submodules: int) -> float:
    pairs = [(step_seconds(submodules, True), step_seconds(submodules, False)) for _ in range(5)]
    return min(seen for seen, _ in pairs) - min(plain for _, plain in pairs)


if __name__ == "__main__":
    none, many = added(0), added(SUBMODULES)
    print(f"{1e6 * none:.1f} µs a step, {1e6 * (many - none) / SUBMODULES:.2f} µs a call of a submodule")
