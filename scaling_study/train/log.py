"""What a training leaves while it runs: rows for people and tools, and a sign of life for the driver.

training.csv     one row an evaluation      progress.json     how far it is, replaced every few seconds
"""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scaling_study.records.store import PROGRESS


class Log:
    """Rank 0's; the other ranks leave nothing. Without a folder it only prints."""

    def __init__(self, folder: Path | None, rank: int) -> None:
        self.folder, self.rank = folder, rank
        if folder:
            folder.mkdir(parents=True, exist_ok=True)

    def rows(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """All evaluations so far: the file is whole after a resumption too."""
        if self.folder and self.rank == 0 and rows:
            half = self.folder / ".training.csv"
            with half.open("w", newline="", encoding="utf-8") as stream:
                writer = csv.DictWriter(stream, list(rows[-1]))
                writer.writeheader()
                writer.writerows(rows)
            os.replace(half, self.folder / "training.csv")

    def progress(self, **values: Any) -> None:
        """Not synced to the disk: what is lost with the machine is only how far it was."""
        if self.folder and self.rank == 0:
            half = self.folder / f".{PROGRESS}"
            half.write_text(json.dumps(values), encoding="utf-8")
            os.replace(half, self.folder / PROGRESS)

    def print(self, line: str) -> None:
        if self.rank == 0:
            print(line, flush=True)
