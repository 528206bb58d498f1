"""What sections are written from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from analysis.execution.lost_parts import NOTHING, Salvage
from analysis.findings import all_findings
from analysis.findings.finding import Finding
from analysis.frames.results import Results
from analysis.report.content import Part, Picture, lost
from analysis.report.origins import Origins


@dataclass(frozen=True)
class Material:
    """`folder`: the results folder or packed study as it was named on the command line. `pictures`: those drawn of this
    study, by the name of their files. `salvage`: what could not be made."""

    results: Results
    folder: str
    pictures: Mapping[str, Picture]
    origins: Origins = field(default_factory=Origins)
    salvage: Salvage = field(default=NOTHING)

    def parts(self, what: str, make: Callable[[], Iterable[Part]]) -> list[Part]:
        """What `make` gives, or, loudly, the reason why it gave nothing."""
        return self.salvage.or_else(what, lambda: list(make()), lambda why: [lost(what, why)])

    def text(self, what: str, make: Callable[[], str]) -> str:
        """The same of a sentence."""
        return self.salvage.or_else(what, make, lambda why: f"**{what}**: this part could not be made: {why}.")

    @cached_property
    def findings(self) -> list[Finding]:
        """What speaks against the numbers, the worst first."""
        return all_findings(self.results)

    def drawn(self, *beginnings: str) -> tuple[Picture, ...]:
        """The pictures whose names are one of these, or begin with one and a dash; in this order."""
        return tuple(
            picture
            for word in beginnings
            for name, picture in self.pictures.items()
            if name == word or name.startswith(f"{word}-")
        )
