"""Losses of many steps, on many ranks, as one number.                                                     [torch]"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from scaling_study.ranks import Ranks


def mean_loss(losses: Sequence[torch.Tensor], ranks: Ranks) -> tuple[float, int]:
    """(their mean, the steps of a rank that it is over), of the ranks that have any: of a pipeline those with its last
    stage. Called by all."""
    own = float(torch.stack(list(losses)).double().sum()) if losses else 0.0
    loss_sum, count, having = ranks.total([own, float(len(losses)), float(bool(losses))])
    return loss_sum / count, round(count / having)
