"""What a benchmark is told, and how it says that it cannot run here."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

QUICK_PAIRS = 2


@dataclass(frozen=True)
class Options:
    """From the command line (__main__.py)."""

    quick: bool = False
    asked_pairs: int | None = None
    fraction: float = 0.1  # of an epoch that is timed, the rest extrapolated (study_cost)
    models: tuple[str, ...] = ("resnet18",)
    fresh: bool = False
    held_out: tuple[Path, ...] = ()  # results folders to hold predictions against (prediction)
    minutes: float | None = None  # that a gathering may take (verdicts, bench_verdicts, decentralized)
    folder: Path | None = None  # of clones (public_scripts)

    def pairs(self, usual: int) -> int:
        """How many pairs to take, where a benchmark's own number is `usual`."""
        return self.asked_pairs or (QUICK_PAIRS if self.quick else usual)

    @contextmanager
    def work(self, kept: Path, within: Path | None = None) -> Iterator[Path]:
        """A folder to go on in: `kept`, which --fresh empties; in the quick form one of its own, `within` another."""
        if self.quick:
            with tempfile.TemporaryDirectory(prefix=f"{kept.name}-", dir=within) as made:
                yield Path(made)
            return
        if self.fresh:
            shutil.rmtree(kept, ignore_errors=True)
        kept.mkdir(parents=True, exist_ok=True)
        yield kept


class Unavailable(Exception):
    """This benchmark cannot run here; the message says why in one clause, `detail` quotes more for a person."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason)
        self.detail = detail
