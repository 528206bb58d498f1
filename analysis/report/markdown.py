"""A report as Markdown: the same words and tables; figures and long lists are files beside it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from urllib.parse import quote

from analysis.report.page import (
    Bullets,
    Card,
    Cards,
    Code,
    Files,
    Fold,
    Grid,
    Heading,
    LongListing,
    Part,
    Picture,
    Report,
    Text,
)
from analysis.show.layout import harmless, markdown_rows

MOST_ROWS = 400  # of one table; the rest are in its CSV


def markdown(report: Report) -> str:
    """GitHub's. Lines of others make no heading, no list, no link and no HTML."""
    lines = [f"# {_line(report.title)}", "", *(f"- {_line(fact)}" for fact in report.facts), ""]
    if report.lost:
        lines += ["> **Parts of this page could not be made.**", "", *(f"- {_line(part)}" for part in report.lost), ""]
    for section in report.sections:
        lines += [f"## {_line(section.title)}", "", _line(section.lead), "", *_parts(section.parts)]
    return "\n".join(lines).rstrip("\n") + "\n"


def _parts(parts: Iterable[Part]) -> Iterator[str]:
    for part in parts:
        yield from _part(part)


def _part(part: Part) -> Iterator[str]:
    match part:
        case Heading():
            yield from (f"### {_line(part.text)}", "")
        case Text():
            label = f"**{_line(part.label)}**: " if part.label else ""
            yield from ((f"> {label}" if part.tone else label) + _line(part.text), "")
        case Bullets():
            yield from (*(f"- {_line(item)}" for item in part.items), "")
        case Cards():
            yield from (f"### {_line(part.title)}", "", *(_card(card) for card in part.cards), "")
        case Grid():
            yield from _grid(part)
        case LongListing():
            yield from (f"**{_line(part.title)}**: {part.length:,} rows, in `{_line(part.file)}`.", "")
        case Picture():
            yield from (f"![{harmless(part.words)}](figures/{part.name}.png)", "")
        case Files():
            yield from (*(f"- [{harmless(path)}](<./{quote(path)}>)" for path in part.paths), "")
        case Code():
            yield from ("```", *part.text.replace("```", "'''").splitlines(), "```", "")
        case Fold():
            yield from (f"**{_line(part.summary)}**", "", *_parts(part.parts))


def _card(card: Card) -> str:
    if not card.value:
        return f"- **{_line(card.label)}**: not known: {_line(card.note)}"
    alike = f"; tied (95 %): {'; '.join(card.alike)}" if card.alike else ""
    whose = "; ".join(filter(None, (card.interval, card.name)))
    note = f"; {card.note}" if card.note else ""
    return f"- **{_line(card.label)}**: **{_line(card.value)}** ({_line(whose)}){_line(alike)}{_line(note)}"


def _grid(grid: Grid) -> Iterator[str]:
    yield from (f"**{_line(grid.title)}**", "")
    if grid.rows:
        yield from (*markdown_rows(grid.header, grid.rows[:MOST_ROWS], grid.names), "")
    if len(grid.rows) > MOST_ROWS:
        yield from (f"{len(grid.rows) - MOST_ROWS} more rows.", "")
    yield from (*(f"- {_line(note)}" for note in grid.notes), "")


def _line(text: str) -> str:
    """On a line of its own, and the beginning of nothing: of no heading, quotation or list."""
    line = harmless(text)
    return f"\\{line}" if line[:1] in tuple("#>-+=") else line
