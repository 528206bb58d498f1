"""Images that cannot be decoded: the run stops at the first, or has black ones in their places, counted and named.

Which it is, is the trial key `damaged_images`.
"""

from __future__ import annotations

from pathlib import Path

from scaling_study.trial import Trial

NAMED = 5  # in a note; all are counted


class DamagedFiles:
    """What a rank met."""

    def __init__(self, replace: bool = False) -> None:
        self.replace, self.met = replace, dict[Path, str]()

    @classmethod
    def of(cls, trial: Trial) -> DamagedFiles:
        return cls(replace=trial.damaged_images == "replace")

    def meet(self, file: Path, why: str) -> None:
        """A black image is to take the place of `file`. Raises SystemExit with `why` where it is to stop instead."""
        if not self.replace:
            raise SystemExit(why)
        self.met[file] = why

    def notes(self) -> list[str]:
        """For the record: how many and which."""
        if not self.met:
            return []
        more = ", ..." if len(self.met) > NAMED else ""
        names = ", ".join(map(str, sorted(self.met)[:NAMED]))
        return [f"{len(self.met):,} damaged image(s), in whose places are black ones: {names}{more}"]
