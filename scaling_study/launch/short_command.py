"""The short commands of fsdp/: `--fp16 --gpus 2`, and they become the command line that a study starts."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence

from scaling_study.launch.launchers import command
from scaling_study.machine import this_machine
from scaling_study.study.support import unsupported
from scaling_study.trial import Trial

SCRIPT = "fsdp/fairscale_fsdp.py"


def parser(description: str) -> argparse.ArgumentParser:
    """The flags that all short commands have; what they do not know is passed on to the script."""
    flags = argparse.ArgumentParser(description=description, epilog=f"Further flags: {SCRIPT} --help")
    flags.add_argument("--fp16", action="store_true", help="compute in fp16, which needs a GPU")
    flags.add_argument("--gpus", type=int, default=1, help="workers, each with a GPU where there are any (default: 1)")
    return flags


def become(model: str, fp16: bool, workers: int, further: Sequence[str]) -> None:
    """Replace this process by torchrun with FairScale's script. Raises SystemExit where this machine cannot run it."""
    machine, precision = this_machine(), "fp16" if fp16 else "fp32"
    trial = Trial(
        framework="fairscale_fsdp", model=model, precision=precision, allreduce=precision,
        workers=workers, launcher="torchrun", device=machine.device,
    )  # fmt: skip
    if why := unsupported(trial, machine):
        raise SystemExit(f"not on this machine: {why}")
    if not machine.gpus:
        print(f"no GPU here: --gpus {workers} is {workers} worker(s) on the CPU", flush=True)
    line = command(trial)
    os.execvpe(line.argv[0], [*line.argv, *further], {**os.environ, **line.env})
