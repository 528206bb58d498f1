"""Which training samples are held out for validation.                                                   [torch]

    labels  0 1 1 0 2 ...   --stratified-->   train 0 2 3 ...   validation 1 4 ...     disjoint, the same for every seed

The split depends on the labels and the share alone: runs with other seeds validate on the same samples, and no run
trains on what another selects by.
"""

from __future__ import annotations

import torch

SPLIT_SEED = 20_001


def stratified(labels: torch.Tensor, share: float) -> tuple[torch.Tensor, torch.Tensor]:
    """(training ids, validation ids), each int64 and sorted, of labels (n,); `share` of each class is held out."""
    generator = torch.Generator().manual_seed(SPLIT_SEED)
    held_out = torch.zeros(len(labels), dtype=torch.bool)
    for label in labels.unique(sorted=True):
        ids = (labels == label).nonzero().flatten()
        held_out[ids[torch.randperm(len(ids), generator=generator)[: round(share * len(ids))]]] = True
    return (~held_out).nonzero().flatten(), held_out.nonzero().flatten()
