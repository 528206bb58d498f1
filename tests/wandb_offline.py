"""Offline runs of Weights & Biases, read without its own code, which has no reader for them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def offline(path: Path) -> Iterator[Any]:
    """The records of an offline run: a log of LevelDB, in blocks of 32 KiB, after a header of 7 bytes."""
    from wandb.proto import wandb_internal_pb2

    data, at, whole, block = path.read_bytes(), 7, b"", 1 << 15
    while at + 7 <= len(data):
        if block - at % block < 7:
            at += block - at % block
            continue
        size, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        whole += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole in itself, or the last part
            record = wandb_internal_pb2.Record()
            record.ParseFromString(whole)
            yield record
            whole = b""


def rows(path: Path) -> list[dict[str, Any]]:
    """What an offline run has logged, a mapping a step."""
    logged = [record.history.item for record in offline(path) if record.WhichOneof("record_type") == "history"]
    return [{item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in row} for row in logged]
