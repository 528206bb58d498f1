"""As warm.py, of the frameworks that shard optimisers, wrap DDP or cut the model: FairScale, Lightning, pipelines.

Claimed of each, and of all together: samples/s of a warm launch over those of a cold one lie within 0.95 to 1.05, on
resnet8 and resnet18.

On a GPU: DDP, FSDP2, mpi4py and Horovod with one worker each, on resnet18.

Not shown: DeepSpeed, whose engines share one setting of autocast; what needs a GPU (DataParallel, Lightning's FSDP).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks import warm
from benchmarks.options import Options
from benchmarks.paired import Finding, of_launches, ratio
from scaling_study.machine import this_machine
from scaling_study.settings import CACHE

KEPT, KEPT_OF_A_GPU = CACHE / "benchmarks" / "warm-others", CACHE / "benchmarks" / "warm-others-on-a-gpu"
(WHAT,) = warm.COMPARED  # the one quantity that is compared where there is no GPU
SWEEPS: tuple[Mapping[str, Any], ...] = (
    {"framework": "fairscale_oss", "workers": 2},
    {"framework": "fairscale_fsdp", "workers": 2},
    {"framework": "lightning_ddp", "workers": 2},
    {"framework": "torch_pipeline", "workers": 2},
    {"framework": "naive_model_parallel", "workers": 2},
    {"framework": "fairscale_pipe", "workers": 2},
)
ON_A_GPU = [{**sweep, "workers": 1, "matrix": {"model": ["resnet18"]}} for sweep in warm.SWEEPS[1:]]


def run(options: Options) -> list[Finding]:
    findings = warm.compared(options, *((ON_A_GPU, KEPT_OF_A_GPU) if this_machine().gpus else (SWEEPS, KEPT)))
    pairs = of_all(findings)
    control = warm.control_of(range(1, len(pairs) + 1), pairs)
    return [*findings, Finding(f"all of these: {WHAT}, {warm.RATIO}", ratio(pairs), warm.BAR, control=control)]


def of_all(findings: Sequence[Finding]) -> list[tuple[float, float]]:
    """Of each launch one pair, over all configurations: what the machine does in its minutes is common to them."""
    launches: dict[int, list[tuple[float, float]]] = {}
    for evidence in (finding.evidence for finding in findings if WHAT in finding.evidence):
        for launch, pair in zip(evidence["launches"], evidence[WHAT], strict=True):
            launches.setdefault(launch, []).append(pair)
    return of_launches([launches[launch] for launch in sorted(launches)])
