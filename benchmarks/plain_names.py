"""The frameworks for which plain_step.py has a loop. Apart, so that naming them does not import torch."""

from __future__ import annotations

FRAMEWORKS_WITH_A_LOOP = ("torch_ddp", "torch_fsdp2", "fairscale_oss", "deepspeed_zero", "lightning_ddp", "single")
