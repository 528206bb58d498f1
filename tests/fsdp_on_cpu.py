"""Run a script of Lightning's FSDP on a CPU: `python fsdp_on_cpu.py fsdp/lightning_fsdp.py FLAGS`.

Lightning's one check for a GPU is stepped over: torch's own FSDP, which Lightning wraps, runs on a CPU if told that
it computes there. Not what anybody would measure; all that can be shown of the script without a GPU.
"""

from __future__ import annotations

import runpy
import sys
from typing import Any

import torch
from lightning.fabric import connector
from lightning.pytorch.trainer.connectors import accelerator_connector
from torch.distributed.fsdp import FullyShardedDataParallel

whole = FullyShardedDataParallel.__init__


def on_cpu(self: Any, *arguments: Any, **settings: Any) -> None:
    whole(self, *arguments, **{**settings, "device_id": torch.device("cpu")})


if __name__ == "__main__":
    FullyShardedDataParallel.__init__ = on_cpu
    connector._Connector._check_strategy_and_fallback = lambda self: None
    accelerator_connector._AcceleratorConnector._check_strategy_and_fallback = lambda self: None
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
