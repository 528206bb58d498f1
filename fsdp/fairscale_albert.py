"""FairScale's FSDP on ALBERT and CoLA, in one short command.

    python fsdp/fairscale_albert.py --fp16 --gpus 2

It becomes fsdp/fairscale_fsdp.py under torchrun, the same line that a study starts; any other flag is passed on to it
(`--batch-per-worker 8 --zero-stage 2 --steps 20`). `--fp16` is precision of compute, and of gradients, which
FairScale reduces as they were computed; in a Horovod study the word means the second only (F7).
"""

import argparse
import os

from scaling_study.launch.launchers import command
from scaling_study.machine import this_machine
from scaling_study.study.plan import unsupported
from scaling_study.trial import Trial


def main() -> None:
    what = __doc__.splitlines()[0]
    parser = argparse.ArgumentParser(description=what, epilog="Further flags: fsdp/fairscale_fsdp.py --help")
    parser.add_argument("--fp16", action="store_true", help="compute in fp16, which needs a GPU")
    parser.add_argument("--gpus", type=int, default=1, help="workers, each with a GPU where there are any (default: 1)")
    asked, further = parser.parse_known_args()

    machine = this_machine()
    precision = "fp16" if asked.fp16 else "fp32"
    trial = Trial(
        framework="fairscale_fsdp", model="albert_base_v2", precision=precision, allreduce=precision,
        workers=asked.gpus, launcher="torchrun", device=machine.device,
    )  # fmt: skip
    if why := unsupported(trial, machine):
        raise SystemExit(f"not on this machine: {why}")
    if not machine.gpus:
        print(f"no GPU here: --gpus {asked.gpus} is {asked.gpus} worker(s) on the CPU", flush=True)
    line = command(trial)
    os.execvpe(line.argv[0], [*line.argv, *further], {**os.environ, **line.env})


if __name__ == "__main__":
    main()
