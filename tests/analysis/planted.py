"""Results folders whose truth is known: records made through the program's own dataclasses.

plant(tmp_path, [Planted("horovod", workers=2, allreduce="fp16", speed=700.0), ...], baseline={...})
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from analysis.frames import configurations
from analysis.views import memory
from scaling_study.frameworks import FRAMEWORKS
from scaling_study.records.schema import Phases, RankReport, Record
from scaling_study.records.store import write_record
from scaling_study.study import support
from scaling_study.trial import RESOLVED, Trial

MACHINE = {"cores": 2, "cpu": "Intel(R) Xeon(R) CPU @ 2.20GHz", "gpus": [], "memory_bytes": 8 << 30}
MACHINE["fingerprint"] = "abcd1234"
PARAMETERS = {"resnet8": 78_042, "resnet18": 11_181_642, "resnet50": 23_528_522, "albert_tiny": 2_175_234}


@dataclass(frozen=True)
class Planted:
    """One configuration and the throughput that each of its repeats will show."""

    framework: str = "single"
    model: str = "resnet18"
    batch_per_worker: int = 32
    workers: int = 1
    allreduce: str = "none"
    speed: float | None = 100.0  # samples/s over all workers; None: not ok
    status: str = "ok"
    reason: str = ""
    repeats: int = 3
    noise: float = 0.01  # spread between repeats, relative
    steps: int = 60
    keys: tuple[tuple[str, Any], ...] = ()  # other trial keys
    planned_repeats: int | None = None  # before any was seen
    tokens: int | None = None  # of a sample
    counted: bool = False  # bytes of memory and of collectives are those of its algorithm
    drift: tuple[float, ...] = ()  # measured in rounds: what each launch does to all that is in it

    def trial(self, repeat: int = 1) -> Trial:
        launcher, axes = FRAMEWORKS[self.framework].launchers[0], FRAMEWORKS[self.framework].axes
        controller = "gloo" if self.framework == "horovod" else None
        base = Trial(
            framework=self.framework, model=self.model, batch_per_worker=self.batch_per_worker,
            workers=self.workers, allreduce=self.allreduce, launcher=launcher, controller=controller,
            device="cpu", cores_per_worker=1, data="cifar10", machine="abcd1234", repeat=repeat,
            **{key: value for key, value in RESOLVED.items() if key in axes},  # as a plan has it
        )  # fmt: skip
        return replace(base, **dict(self.keys) | ({"warm": True} if self.drift else {}))


def plant(folder: Path, planted: Iterable[Planted], *, study: str = "planted", seed: int = 0, **about: Any) -> Path:
    """Write folder/study.json and the record of every repeat; `about` overrides keys of study.json."""
    folder.mkdir(parents=True, exist_ok=True)
    said = {"study": study, "scaling": "weak", "baseline": None, "machine": MACHINE, "seed": 0}
    said |= {"target_interval": 0.02, "schema": 1} | about
    (folder / "study.json").write_text(json.dumps(said))
    rng = np.random.default_rng(seed)
    for one in planted:
        for repeat in range(1, one.repeats + 1):
            trial = one.trial(repeat)
            speed = None if one.speed is None or one.status != "ok" else one.speed * (1 + one.noise * rng.normal())
            if speed and one.drift:
                speed *= 1 + one.drift[repeat - 1]
            write_record(folder / "trials" / trial.id, record(one, trial, speed, study, rng))
    return folder


def record(one: Planted, trial: Trial, speed: float | None, study: str, rng: np.random.Generator) -> Record:
    """The record of one repeat; with `speed`, the slowest rank's window is exactly samples / speed seconds."""
    made = Record(
        study=study, id=trial.id, configuration=trial.configuration, trial=trial,
        status=one.status, reason=one.reason, planned_repeats=one.planned_repeats,
        started_at=f"2026-01-31T10:{trial.repeat:02d}:00+00:00",
        command="python …", machine=dict(MACHINE),
        launch=f"{trial.repeat}/0-0-{one.framework}_{one.workers}" if one.drift else "",
    )  # fmt: skip
    if speed is None:
        return replace(made, error="it did not work")
    mean = trial.global_batch / speed
    raw = mean * (1 + 0.02 * rng.standard_normal(one.steps))
    slowest = raw * mean / raw.mean()
    shares = [1.0 if rank == 0 else 0.99 for rank in range(trial.workers)]
    counts: dict[str, Any] = counted(trial) if one.counted else {}
    counts |= {"tokens_seen": one.tokens * trial.batch_per_worker * one.steps} if one.tokens else {}
    ranks = [rank_report(trial, rank, (slowest * share).tolist(), **counts) for rank, share in enumerate(shares)]
    return replace(made, launch_seconds=2.5, total_seconds=20.0, exit_code=0, ranks=ranks)


def changed(folder: Path, change: Callable[[dict[str, Any]], Any], only: str = "") -> Path:
    """Every record in `folder` (of configurations with `only` in their id) as `change` makes it."""
    for path in folder.glob("trials/*/record.json"):
        whole = json.loads(path.read_text())
        if only in whole["configuration"]:
            change(whole)
            path.write_text(json.dumps(whole))
    return folder


def changed_ranks(folder: Path, change: Callable[[dict[str, Any]], Any], only: str = "") -> Path:
    """The same of every report of a rank."""
    return changed(folder, lambda record: [change(rank) for rank in record["ranks"]], only)


def rank_report(trial: Trial, rank: int, step_seconds: list[float], **changes: Any) -> RankReport:
    mean = sum(step_seconds) / len(step_seconds)
    parameters = PARAMETERS.get(trial.model, 1000)
    width = {"none": 0, "fp32": 4, "fp16": 2, "bf16": 2}.get(trial.allreduce, 1)
    report = RankReport(
        rank=rank, world_size=trial.workers, local_rank=rank, host="planted", pid=1000 + rank, device="cpu",
        device_name="Xeon", cores=[rank], threads=1, first_step_at=0.0, warmup_seconds=[mean] * 5,
        step_seconds=step_seconds, samples_per_step=trial.batch_per_worker,
        samples_seen=trial.batch_per_worker * len(step_seconds), tokens_seen=None,
        phases=Phases(4, mean, 0.1 * mean, 0.3 * mean, 0.4 * mean, None, 0.1 * mean, 0.1 * mean),
        parameters=parameters, allreduce_bytes=parameters * width,
        communication_bytes={"allreduce": parameters * width, "broadcast": 8} if width else {},
        peak_memory_bytes=(1 << 30) + rank, memory={}, loss_first=2.3 + rank, loss_last=1.9 + rank,
        data_source="synthetic (asked for)" if trial.data == "synthetic" else "cifar10 (/data)",
        steps_per_epoch=max(1, 50_000 // trial.global_batch), gpu_utilization_percent=None,
        energy_joules=100.0 + rank, backend={}, versions={},
    )  # fmt: skip
    return replace(report, **changes)


def planted_row(speeds: Iterable[float], **keys: Any) -> dict[str, Any]:
    """A row of configurations.csv, as far as estimates look at it, from the throughput of each of its repeats."""
    values = list(map(float, speeds))
    row = dict.fromkeys(configurations.KEYS) | {
        "framework": "single", "model": "m", "configuration": "c", "series": "s", "batch": 32, "workers": 1,
        "data": "cifar10", "status": "ok", "reason": "", "parity": "passed", "not_comparable": "", "parameters": 7,
        "oversubscribed": False, "baseline": "", "speedup": None, "n": len(values), "planned": len(values),
        "samples_per_second": sum(values) / len(values), "repeat_values": repeat_values(values), "repeat_launches": "",
    }  # fmt: skip
    return row | dict.fromkeys(configurations.COLUMNS) | keys


def repeat_values(speeds: Iterable[float]) -> str:
    return ";".join(repr(float(speed)) for speed in speeds)


def default_study(synthetic: bool = False, **about: Any) -> tuple[list[Planted], Mapping[str, Any]]:
    """Like the default study: 2 models x 2 batches x {single, horovod 1, 2 fp32, 2 fp16} x 3 repeats, 2 CPU cores."""
    keys = (("data", "synthetic"),) if synthetic else ()
    base = {("resnet8", 32): 1510.0, ("resnet8", 64): 1720.0, ("resnet18", 32): 92.0, ("resnet18", 64): 101.0}
    made = []
    for (model, batch), speed in base.items():
        one = Planted("single", model, batch, speed=speed, noise=0.02, steps=12, keys=keys)
        fp16 = 1.01 if model == "resnet8" else 1.12
        made += [
            one,
            replace(one, framework="horovod", speed=speed * 0.97),
            replace(one, framework="horovod", workers=2, allreduce="fp32", speed=speed * 1.55),
            replace(one, framework="horovod", workers=2, allreduce="fp16", speed=speed * 1.55 * fp16),
        ]
    return made, {"study": "cifar10-scaling", "baseline": {"framework": "single"}, **about}


def plant_default(folder: Path, **about: Any) -> Path:
    """The default study as a results folder."""
    planted, said = default_study(**about)
    return plant(folder, planted, **said)


PUBLISHED = {  # samples/s on two T4s, as published: 1 worker; 2 workers fp32; 2 workers fp16
    "resnet18": (
        (1212.68, 2066.09, 4154.47, 4657.18, 1349.24, 1572.35),
        (589.44, 1141.80, 1982.21, 3137.18, 2220.24, 2553.68),
        (986.92, 1723.44, 2806.71, 3710.37, 2317.58, 2619.07),
    ),
    "resnet50": (
        (722.70, 1185.17, 1916.11, 2502.14, 2203.63, None),
        (286.04, 554.57, 1104.94, 1920.54, None, None),
        (531.37, 974.27, 1697.14, 2546.21, 3009.07, None),
    ),
}


def published_study(**about: Any) -> tuple[list[Planted], Mapping[str, Any]]:
    """The 36 published configurations with some that ran out of memory or time, on two GPUs."""
    gpu = (("device", "cuda"),)
    made = []
    for model, (one, fp32, fp16) in PUBLISHED.items():
        for workers, allreduce, speeds in ((1, "none", one), (2, "fp32", fp32), (2, "fp16", fp16)):
            for batch, speed in zip((32, 64, 128, 256, 512, 1024), speeds, strict=True):
                status = "ok" if speed else "timeout" if workers == 2 and batch == 1024 else "oom"
                reason = {"oom": "CUDA out of memory", "timeout": "no step within 600 s"}.get(status, "")
                made.append(
                    Planted("horovod", model, batch, workers, allreduce, speed, status, reason, 3 if speed else 1,
                            0.03, 200, gpu)
                )  # fmt: skip
    machine = {"cores": 8, "cpu": "Intel(R) Xeon(R) CPU", "gpus": ["Tesla T4"] * 2, "memory_bytes": 60 << 30}
    said = {"study": "distributed_dl_horovod", "machine": machine | {"fingerprint": "abcd1234"}}
    return made, {**said, "baseline": {"framework": "horovod", "workers": 1}, **about}


def counted(trial: Trial) -> dict[str, Any]:
    """Bytes that the algorithm of a trial holds and sends, with one optimiser state a parameter."""
    whole, n = 4 * PARAMETERS[trial.model], trial.workers
    stage = memory.stage_of({"framework": trial.framework, "zero_stage": trial.zero_stage}) or 0
    shares = [whole // n if stage >= first else whole for first in (3, 2, 1)]
    kinds = dict(zip(("parameters", "gradients", "optimizer"), shares, strict=True))
    kinds |= {"buffers": 38_560, "activations": 456_000 * trial.batch_per_worker, "resident": 300_000_000}
    gradients = {"none": 0, "fp32": whole, "fp16": whole // 2, "bf16": whole // 2}[trial.allreduce]
    if n == 1:
        sent = {}
    elif trial.framework == "fairscale_oss":
        sent = {"reduce": gradients, "broadcast": whole}
    elif stage == 3:
        sent = {"reduce_scatter": gradients, "all_gather": 2 * whole}
    else:
        sent = {"allreduce": gradients} | ({"all_gather": whole} if stage else {})
    peak = sum(kinds.values()) - kinds["resident"]
    return {"memory": kinds, "peak_memory_bytes": peak, "communication_bytes": sent, "allreduce_bytes": gradients}


def plant_gates(
    folder: Path, planted: Iterable[Planted], faults: Mapping[str, str] | None = None, study: str = "planted"
) -> list[Trial]:
    """Write the record of every gate of these configurations: passed, but for a framework with a fault."""
    made = support.needed(one.trial() for one in planted)
    for trial in made:
        fault = (faults or {}).get(trial.framework, "")
        about = record(Planted(steps=10), trial, 50.0, study, np.random.default_rng(0))
        verdict = {"parity": fault, "status": "failed", "reason": f"parity: {fault}"} if fault else {"parity": "passed"}
        write_record(folder / "trials" / trial.id, replace(about, **verdict))
    return made


TEN = ("single", "torch_ddp", "horovod", "mpi_allreduce", "fairscale_oss", "fairscale_fsdp", "torch_fsdp2")
TEN += ("deepspeed_zero", "lightning_ddp", "lightning_fsdp")
STAGES = {"torch_fsdp2": (2, 3), "deepspeed_zero": (1, 2, 3), "fairscale_fsdp": (3,), "lightning_fsdp": (3,)}


def ten_frameworks(
    models: Iterable[str] = ("resnet18",),
    batches: Iterable[int] = (32, 64),
    precisions: Iterable[str] = ("fp32", "fp16"),
) -> list[Planted]:
    """A study of everything on a CPU: frameworks x ZeRO stages x {1 worker, 2 workers by precision}, and a pipeline
    whose speed says nothing there."""
    pipe = Planted(
        "fairscale_pipe", workers=2, allreduce="none", speed=250.0, keys=(("stages", 2), ("micro_batches", 4))
    )
    made = [replace(pipe, model=model, batch_per_worker=batch) for model, batch in itertools.product(models, batches)]
    for model, batch, (place, framework) in itertools.product(models, batches, enumerate(TEN)):
        for stage in STAGES.get(framework, (None,)):
            speed = (
                {"resnet8": 700.0, "albert_tiny": 60.0}.get(model, 320.0) * (0.8 + 0.004 * batch) * (1 - 0.03 * place)
            )
            keys = (("zero_stage", stage),) if stage else ()
            text = {"tokens": 64} if model.startswith("albert") else {}
            one = Planted(framework, model, batch, speed=speed, noise=0.02, keys=keys, counted=True, **text)
            made.append(one)
            if framework != "single":
                gain = {"fp32": 1.75, "fp16": 1.6, "bf16": 1.7}
                made += [replace(one, workers=2, allreduce=p, speed=speed * gain[p]) for p in precisions]
    return made
