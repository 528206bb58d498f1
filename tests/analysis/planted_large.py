"""A results folder as large as any that is promised to work: 10,000 trials of 200 steps, in the sizes of real records.

    python tests/analysis/planted_large.py FOLDER [N]    # 160 MB; takes a minute

Each record is what the program writes, byte for byte but for its numbers: one is encoded for each configuration, and
its repeats differ in what repeats differ in.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
from planted import MACHINE, Planted, record

from scaling_study.records.store import encoded

MODELS, BATCHES = 10, (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
FRAMEWORKS = ("horovod", "torch_ddp", "mpi_allreduce", "fairscale_oss", "fairscale_fsdp", "torch_fsdp2")
FRAMEWORKS += ("lightning_ddp", "lightning_fsdp")
REPEATS, STEPS = 4, 200


def configurations() -> Iterator[Planted]:
    """10 models x 10 batch sizes x 25 of frameworks, workers and precisions; every 50th was out of memory."""
    for model, batch in itertools.product(range(MODELS), BATCHES):
        speed = 4000.0 / (1 + model) * batch / (batch + 60)
        one = Planted("single", f"model{model}", batch, speed=speed, repeats=REPEATS, noise=0.01, steps=STEPS)
        yield one
        for place, framework in enumerate(FRAMEWORKS):
            ours = replace(one, framework=framework, speed=speed * (0.99 - 0.01 * place))
            yield ours
            for precision, gain in (("fp32", 1.7), ("fp16", 1.75)):
                two = replace(ours, workers=2, allreduce=precision, speed=speed * gain * (1 - 0.02 * place))
                failed = batch == BATCHES[-1] and model % 2 and precision == "fp32"
                yield replace(two, status="oom", reason="CUDA out of memory") if failed else two


def plant_large(folder: Path, most: int | None = None) -> int:
    """Write the folder, of the first `most` configurations; returns how many trials it has."""
    chosen = list(itertools.islice(configurations(), most))
    folder.mkdir(parents=True, exist_ok=True)
    about = {"study": "large", "scaling": "weak", "baseline": {"framework": "single"}, "machine": MACHINE, "schema": 1}
    (folder / "study.json").write_text(json.dumps(about))
    rng = np.random.default_rng(0)
    for one in chosen:
        for repeat, (name, text) in enumerate(_texts(one, rng), 1):
            place = folder / "trials" / name
            place.mkdir(parents=True)
            (place / "record.json").write_bytes(text)
            assert name.endswith(f".r{repeat}")
    return sum(one.repeats for one in chosen)


def _texts(one: Planted, rng: np.random.Generator) -> Iterator[tuple[str, bytes]]:
    """(trial id, record.json) of each repeat."""
    trial = one.trial()
    speed = None if one.status != "ok" else one.speed
    made = record(replace(one, steps=2), trial, speed, "large", rng)
    holes = [replace(rank, step_seconds=[-1.0]) for rank in made.ranks]
    template = encoded(asdict(replace(made, ranks=holes)))
    for repeat in range(1, one.repeats + 1):
        text = template.replace(trial.id.encode(), one.trial(repeat).id.encode())
        text = text.replace(b'"repeat": 1,', b'"repeat": %d,' % repeat)
        if speed is not None:
            mean = trial.global_batch / (speed * (1 + one.noise * rng.normal()))
            for _ in holes:
                steps = mean * (1 + 0.02 * rng.standard_normal(STEPS))
                numbers = b",\n    ".join(repr(seconds).encode() for seconds in steps.tolist())
                seen = b'"samples_seen": %d' % (one.batch_per_worker * STEPS)
                text = text.replace(
                    b'"step_seconds": [\n    -1.0\n   ]', b'"step_seconds": [\n    %b\n   ]' % numbers, 1
                )
                text = text.replace(b'"samples_seen": %d' % (2 * one.batch_per_worker), seen, 1)
        yield one.trial(repeat).id, text


if __name__ == "__main__":
    first = int(sys.argv[2]) if len(sys.argv) > 2 else None  # so many configurations
    print(f"{plant_large(Path(sys.argv[1]), first):,} trials")
