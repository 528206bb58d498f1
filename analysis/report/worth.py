"""The parts of a page that stand open, those that are folded, and those that only the full page has.

A page is read in a minute: at most MOST_OPEN lines of its Markdown stand outside of folds, and it has at most
MOST_LINES. The answer, errors and warnings stand open; then, as far as there is room, the tables that a reader looks
for next, which depends on what the study asks (questions). The rest is folded, the parts with most worth first, and
`--full` has what finds no room. The HTML page holds all of it, and begins with the same parts open.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from analysis.report import rendering
from analysis.report.headline import Facts
from analysis.report.page import Fold, Report, Section

MOST_LINES, MOST_OPEN = 300, 120
MOST_TABLES = 3  # keys of folds that a page begins with open
MOST_KEPT = 30  # closed folds for which room is left beside the open ones: each takes a blank line
OTHER = ""  # a key that WORTH does not name
WORTH = (  # keys of folds, first what most readers look for; the same numbers once more come late
    *("failed", "unread", "warnings", "numbers"),
    *("target", "transfer", "verdicts", "speedup", "gain", "timelines", "batch", "figures"),
    *("recognition", "maps", "attribution", "parity", "throughput", "pipeline", "epochs", "rounds"),
    *("references", "published", "published-outcomes", "bottleneck", "memory", "machine", "info"),
    *("target-pairs", "efficiency", "compared", "laws", "traces", OTHER, "flaws", "gaps"),
)
Place = tuple[int, int]  # of a part: its section, and where it stands there


@dataclass(frozen=True)
class Question:
    """A question that a study may ask. `figures`: names of drawings; the first that was drawn stands beside the answer.
    `tables`: keys of the folds that a reader looks for next."""

    figures: tuple[str, ...]
    tables: tuple[str, ...]


RESULT = Question(("target",), ("transfer", "target", "batch"))  # what is trained soonest, or best
WAYS = Question(("frameworks", "throughput"), ("timelines", "verdicts", "attribution"))  # to use the same workers
SCALING = Question(("speedup",), ("speedup", "gain", "attribution"))  # more workers
ROOM = Question((), ("memory", "verdicts"))  # what fits
SPEED = Question(("frameworks", "throughput"), ("throughput", "references", "bottleneck"))


def questions(facts: Facts) -> list[Question]:
    """The questions of this study, in the order of the sentences that answer it; the last one of every study."""
    asked = [RESULT] * bool(facts.reached or facts.ended) + [WAYS] * facts.several
    asked += [SCALING] * any(way.scaled for way in facts.ways)
    return [*asked, *([ROOM] if facts.held and not facts.ways else []), SPEED]


def asked(facts: Facts) -> list[str]:
    """Keys of the folds that a reader looks for next; those of SPEED where the study asks nothing else."""
    every = questions(facts)
    return list(dict.fromkeys(key for question in every[:-1] or every for key in question.tables))


def fitted(report: Report, asked: Sequence[str]) -> Report:
    """The report with its folds open (`shown`), closed, or left to the full page (`full`). `asked`: keys of those to
    open, the first first; of a key all are open, or none."""
    folds = {
        (at, index): part
        for at, section in enumerate(report.sections)
        for index, part in enumerate(section.parts)
        if isinstance(part, Fold) and not part.full
    }
    bare = rendering.size(replace(report, sections=tuple(map(_without_folds, report.sections))))
    left, room, said = MOST_LINES - bare.lines, MOST_OPEN - bare.lines, bare.said
    opened, kept, tables = set[Place](), set[Place](), 0
    for key in asked:
        places = [place for place, fold in folds.items() if fold.key == key]
        wanted = rendering.size([replace(folds[place], shown=True) for place in places], said)
        closed = min(MOST_KEPT, len(folds) - len(opened) - len(places))
        if places and tables < MOST_TABLES and wanted.lines + closed <= room:
            room, left, said, tables = room - wanted.lines, left - wanted.lines, wanted.said, tables + 1
            opened.update(places)
    for place in sorted(folds.keys() - opened, key=lambda place: (_worth(folds[place].key, asked), place)):
        wanted = rendering.size([folds[place]], said)
        if wanted.lines <= left and room > 0:
            room, left, said = room - 1, left - wanted.lines, wanted.said
            kept.add(place)
    placed = {
        place: replace(fold, shown=place in opened, full=place not in opened | kept) for place, fold in folds.items()
    }
    sections = (
        replace(section, parts=tuple(placed.get((at, index), part) for index, part in enumerate(section.parts)))
        for at, section in enumerate(report.sections)
    )
    return replace(report, sections=tuple(sections))


def _worth(key: str, asked: Sequence[str]) -> tuple[bool, int]:
    """Sorts what the study asks for first, then by WORTH."""
    return key not in asked, WORTH.index(key if key in WORTH else OTHER)


def _without_folds(section: Section) -> Section:
    return replace(section, parts=tuple(part for part in section.parts if not isinstance(part, Fold)))
