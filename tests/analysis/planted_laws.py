"""Families of worker counts whose law is known."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from planted import Planted, planted_row

from analysis.statistics.scaling_laws import Family

Law = Callable[[float], float]  # workers -> samples a second
ROOM = {"cores": 64, "cpu": "Xeon", "gpus": [], "memory_bytes": 64 << 30, "fingerprint": "abcd1234"}
WEAK: Mapping[str, Law] = {
    "linear": lambda n: 100.0 * n,
    "Amdahl": lambda n: 100.0 * n / (1 + 0.03 * (n - 1)),
    "USL": lambda n: 100.0 * n / (1 + 0.02 * (n - 1) + 0.002 * n * (n - 1)),
    "ring": lambda n: 32.0 * n / (0.32 + 0.002 * (n - 1) + 0.1 * (n - 1) / n),
    "tree": lambda n: 32.0 * n / (0.32 + 0.01 * np.log2(n) + 0.1 * (n - 1) / n),
    "root": lambda n: 32.0 * n / (0.3 + 0.03 * n**0.5),
    "hidden": lambda n: 32.0 * n / (0.32 + max(0.0, 0.01 * np.log2(n) + 0.1 * (n - 1) / n - 0.06)),
}
STRONG: Mapping[str, Law] = {
    "strong ring": lambda n: 256.0 / (2.0 / n + 0.02 + 0.001 * (n - 1)),
    "strong Amdahl": lambda n: 256.0 / (2.0 / n + 0.05),
}


def family(
    law: Law, counts: Sequence[int], repeats: int = 3, noise: float = 0.01, seed: int = 0, strong: bool = False
) -> Family:
    """Measured at these counts."""
    rng = np.random.default_rng(seed)
    return Family(
        "planted",
        tuple(_row(count, law(count) * np.exp(noise * rng.standard_normal(repeats)), strong) for count in counts),
        strong,
        (),
    )


def _row(count: int, rates: Any, strong: bool) -> dict[str, Any]:
    batch, of_all = (256 // count, 256) if strong else (32, 32 * count)
    return planted_row(
        rates, model="resnet18", framework="horovod", workers=count, allreduce="fp32", device="cpu", cores_per_worker=1,
        batch_per_worker=batch, global_batch=of_all, interval_low=None, interval_high=None,
    )  # fmt: skip


def study(law: Law, counts: Sequence[int], **more: Any) -> list[Planted]:
    """The same as configurations of a results folder."""
    return [
        Planted("horovod", "resnet18", 32, count, "none" if count == 1 else "fp32", float(law(count)), **more)
        for count in counts
    ]
