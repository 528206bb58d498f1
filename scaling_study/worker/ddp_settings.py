"""How every framework that is DistributedDataParallel underneath sets it: for speed, as torch advises.  [torch]"""

from __future__ import annotations

from inspect import signature
from typing import Any

from torch.nn.parallel import DistributedDataParallel

from scaling_study.ranks import Ranks
from scaling_study.trial import Trial

KNOWN = signature(DistributedDataParallel).parameters
SYNC = "forward_sync_buffers" if "forward_sync_buffers" in KNOWN else "broadcast_buffers"  # its name before torch 2.13
MIB = 2**20


def ddp_settings(trial: Trial, ranks: Ranks) -> dict[str, Any]:
    """The keywords of DistributedDataParallel, each explained in docs/settings.md.

    Gradients lie in their buckets (nothing is copied, and nothing kept twice), and what has to be copied into a bucket
    is copied at once, where this torch can (2.12). A lone worker has nobody to sync its buffers with.
    """
    settings = {
        "bucket_cap_mb": None if trial.bucket_bytes is None else trial.bucket_bytes / MIB,
        "gradient_as_bucket_view": True,
        SYNC: trial.buffers == "synced" and ranks.world_size > 1,
    }
    return settings | ({"batched_grad_copy": True} if "batched_grad_copy" in KNOWN else {})
