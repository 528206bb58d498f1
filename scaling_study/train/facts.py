"""What a training says of itself so that flaws of published ones can be seen in it (docs/flaws.md).       [torch]"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

FROZEN = "asks for no gradient"
AS_IT_RUNS = "running text is read as it runs"


def groups(
    optimizer: torch.optim.Optimizer, rates: Sequence[float], model: nn.Module, frozen: str = "",
    sizes: Mapping[str, int] = MappingProxyType({}),
) -> list[dict[str, Any]]:  # fmt: skip
    """Of weights, each at one of `rates`; what is frozen at a rate of 0 (F11). `frozen`: the part that is to be, as the
    trial says; its group says so too. `sizes`: parameters of each part, of which a rank may hold shards alone."""
    trained = []
    for number, (group, rate) in enumerate(zip(optimizer.param_groups, rates, strict=True)):
        name, own = str(group.get("name", number)), sum(p.numel() for p in group["params"])
        trained.append({"name": name, "parameters": sizes.get(name, own), "learning_rate": rate})
    still = sizes.get(frozen, sum(p.numel() for p in model.parameters() if not p.requires_grad))
    asked = {"asked": True} if frozen else {}
    at_rest = {"name": frozen or FROZEN, "parameters": still, "learning_rate": 0.0, **asked}
    return [*trained, at_rest] if still else trained


def logged_loss(rows: Sequence[Mapping[str, Any]]) -> str:
    """What the training loss of every row is the mean over: each step since the row before it, or fewer (F12)."""
    before = [0, *(row["steps"] for row in rows)]
    for start, row in zip(before, rows, strict=False):
        if (averaged := row.get("loss_steps", 0)) < row["steps"] - start:
            return f"last {averaged} of {row['steps'] - start} batches"
    return "interval"


def recordable(value: Any) -> Any:
    """With null for what is no number: a training that diverged has a record too, or it would be dropped."""
    if isinstance(value, dict):
        return {key: recordable(one) for key, one in value.items()}
    if isinstance(value, list):
        return [recordable(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
