"""A report as files: one HTML that needs nothing else, and Markdown with the same words and tables."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import NamedTuple
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from analysis.frames import configurations
from analysis.report.page import (
    CONCERNED,
    Bullets,
    Card,
    Cards,
    Code,
    Files,
    Fold,
    Grid,
    LongListing,
    Part,
    Picture,
    Report,
    Section,
    Text,
)
from analysis.show.layout import Cell, harmless, is_right, markdown_rows, to_right

# An SVG of matplotlib's in half of its bytes, drawn the same: for a page that holds fifty of them.
#
# Each path repeats its whole style, so styles become classes. Names of groups and indentation go: nobody reads them
# there. The files beside the page are left as they are, for who opens one in an editor.

TAG = re.compile(rb"<[^>]+>")  # matplotlib writes no > in an attribute
STYLE = re.compile(rb' style="([^"]*)"')
NAMED_GROUP = re.compile(rb'<g id="\w+?_\d+"')  # matplotlib's own counting; what is referred to has other names
UNTURNED = re.compile(rb' transform="rotate\(-0 [^"]*\)"')
BETWEEN = re.compile(rb">\s+<")
INDENT = re.compile(rb"\s*\n\s*")
END_OF_STYLES = b"</style>"


def slim(svg: bytes) -> bytes:
    """`svg`: UTF-8. What has no style sheet of its own keeps its styles where they are."""
    smaller = BETWEEN.sub(b"><", INDENT.sub(b" ", NAMED_GROUP.sub(b"<g", svg)))
    head, sheet, body = smaller.partition(END_OF_STYLES)
    if not sheet:
        return smaller
    names: dict[bytes, bytes] = {}

    def named(match: re.Match[bytes]) -> bytes:
        return b' class="%s"' % names.setdefault(match[1], b"s%d" % len(names))

    body = TAG.sub(lambda tag: STYLE.sub(named, UNTURNED.sub(b"", tag[0])), body)
    rules = b"".join(b".%s{%s}" % (name, style.replace(b": ", b":")) for style, name in names.items())
    return head + rules + sheet + body


# A report as one HTML file that needs nothing else: styles, script, figures and numbers are in it.
#
# Whatever others wrote passes jinja2's escaping. The page's own content policy lets it load nothing, and run no script
# but its own, which it knows by its hash.

PLAIN = "/,;:=+*()[]|!$@"  # need no escaping in an address of data; commas are most of a CSV
MOST_CSV = 100_000  # characters that a page holds of one table's numbers
BESIDE = {f"{name}.csv" for name in ("attribution", "bottleneck", "remedies", "utilisation", "cost", "returns")}
SIGNS = {"best": "▲", "alike": "≈", "worst": "▼", "failed": "✕", "aside": ""}
SAID = {
    "best": "the fastest of its row",
    "alike": "the highest mean of its row, or too close to it to call (95 %)",
    "worst": "the slowest of its row (p < 0.05)",
    "failed": "not measured",
    "aside": "not comparable",
}


def html(report: Report, images: Mapping[str, bytes]) -> str:
    """`images`: the name of a picture -> its SVG or PNG. One that is not there is named in its place."""
    script, style = _asset("page.js"), _asset("page.css")
    policy = (
        f"default-src 'none'; img-src data: blob:; style-src 'unsafe-inline'; script-src '{_hash(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    sources = {name: _source(image) for name, image in images.items()}
    page = _environment().get_template("page.html.jinja")
    return page.render(report=report, sources=sources, script=Markup(script), style=Markup(style), policy=policy)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("analysis", "report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "marked": marked,
        "data": data,
        "download": download,
        "kind": lambda part: type(part).__name__,
        "shown": shown,
        "right": is_right,
        "to_right": to_right,
        "hint": hint,
        "address": address,
    }
    return environment


def marked(text: str) -> Markup:
    """Escaped, and then `**bold**` and `` `code` ``."""
    html = re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", str(escape(text)))
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", html))


def shown(cell: Cell) -> Markup:
    """A cell's text with its sign, which a screen reader is told in words."""
    text = escape(cell.signed)
    if not cell.mark or not cell.text:
        return text
    sign = SIGNS[cell.mark]
    before = Markup('<span aria-hidden="true">{}</span>').format(f" {sign}" if sign else "")
    return text + before + Markup('<span class="sr">, {}</span>').format(SAID[cell.mark])


def hint(grid: Grid) -> str:
    """A word by which a column can be named in a filter."""
    return next((name.split()[0] for name in grid.header[1:] if name.strip()), "word")


def data(listing: LongListing) -> Markup:
    """JSON for a script element: nothing in it can end that."""
    content = {"columns": listing.columns, "values": listing.values}
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029"))


def download(grid: Grid) -> str:
    """The numbers behind a table as an address: themselves, or, where they are many, their file beside the page."""
    if len(grid.csv) > MOST_CSV and grid.file in BESIDE:
        return f"./tables/{quote(grid.file)}"
    return f"data:text/csv;charset=utf-8,{quote(grid.csv, safe=PLAIN)}"


def address(path: str) -> str:
    """The relative URL of a file beside the page: never of another place, whatever its name begins with."""
    return f"./{quote(path)}"


def _source(image: bytes) -> str:
    if image.startswith(b"\x89PNG"):
        return f"data:image/png;base64,{base64.b64encode(image).decode('ascii')}"
    # As text, which is a quarter shorter; an address loses its line ends, which in SVG are spaces.
    text = quote(slim(image), safe=f"{PLAIN} ")
    return f"data:image/svg+xml;charset=utf-8,{text}"


def _asset(name: str) -> str:
    return (resources.files("analysis.report") / name).read_text(encoding="utf-8")


def _hash(script: str) -> str:
    """As the content policy names a script: of all between the tags."""
    return f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode('ascii')}"


MOST_ROWS, MOST_ROWS_IN_ALL = 40, 400  # of one table, on a page and on the full one; the rest are in its CSV


def markdown(report: Report, full: bool = False) -> str:
    """GitHub's. Lines of others make no heading, no list, no link and no HTML. `full`: with every table."""
    words = Words(full, frozenset(note for grid in _open(report) for note in grid.notes))
    lines = _head(report)
    for section in report.sections:
        shown = [*words.parts(section.parts)]
        if shown or not section.about_parts:
            lines += [*_heading(section), *shown]
    left = [part for each in report.sections for part in each.parts if isinstance(part, Fold) and part.full]
    names = list(dict.fromkeys(fold.summary for fold in left if fold.key != CONCERNED))
    if names and not full:
        lines += [f"Only with `--full`, and in the HTML page: {_line('; '.join(names))}.", ""]
    return "\n".join(lines).rstrip("\n") + "\n"


class Size(NamedTuple):
    """Lines of Markdown, at most, and all notes that a page has with them."""

    lines: int
    said: frozenset[str]


def size(shown: Report | Sequence[Part], said: frozenset[str] = frozenset()) -> Size:
    """The room that these parts need on a page that has `said` some notes already, wherever they stand on it."""
    words = Words(said={*said})
    if isinstance(shown, Report):
        sections = [(*_heading(section), *words.parts(section.parts)) for section in shown.sections]
        lines = len(_head(shown)) + sum(map(len, sections)) + 2  # the last says what only the full page has
    else:
        lines = len([*words.parts(shown)])
    return Size(lines + words.bare, frozenset(words.said))


def _head(report: Report) -> list[str]:
    lost = ["> **Parts of this page could not be made.**", "", *(f"- {_line(part)}" for part in report.lost), ""]
    facts = (f"- {_line(fact)}" for fact in report.facts)
    return [f"# {_line(report.title)}", "", *facts, "", *(lost if report.lost else [])]


def _heading(section: Section) -> list[str]:
    return [f"## {_line(section.title)}", "", *([_line(section.lead), ""] if section.lead else [])]


def _open(report: Report) -> Iterator[Grid]:
    """The tables that nobody has to unfold."""
    for section in report.sections:
        for part in section.parts:
            in_sight = part.parts if isinstance(part, Fold) and part.shown else (part,)
            yield from (one for one in in_sight if isinstance(one, Grid))


@dataclass
class Words:
    """Parts as lines of Markdown. A page says a note once, under the first table that has it; one of `open_notes` where
    nobody has to unfold it. A note that explains a sign stands under each table that may have the sign."""

    full: bool = False
    open_notes: frozenset[str] = frozenset()
    said: set[str] = field(default_factory=set)
    bare: int = 0  # tables whose notes were all said before

    def parts(self, parts: Iterable[Part], named: bool = False, folded: bool = False) -> Iterator[str]:
        """`named`: under a summary, which the title of the first need not repeat."""
        for place, part in enumerate(parts):
            yield from self._part(part, named and not place, folded)

    def _part(self, part: Part, named: bool, folded: bool) -> Iterator[str]:
        match part:
            case Text():
                label = f"**{_line(part.label)}**: " if part.label else ""
                yield from ((f"> {label}" if part.tone else label) + _line(part.text), "")
            case Bullets():
                yield from (*(f"- {_line(item)}" for item in part.items), "")
            case Cards():
                yield from (f"### {_line(part.title)}", "", *(_card(card) for card in part.cards), "")
            case Grid():
                yield from self._grid(part, named, folded)
            case LongListing():
                yield from (f"**{_line(part.title)}**: {part.length:,} rows, in `{_line(part.file)}`.", "")
            case Picture():
                yield from (f"![{harmless(part.words)}](figures/{part.name}.png)", "")
            case Files():
                yield from (*(f"- [{harmless(path)}](<./{quote(path)}>)" for path in part.paths), "")
            case Code():
                yield from ("```", *part.text.replace("```", "'''").splitlines(), "```", "")
            case Fold():
                if self.full or not part.full:
                    yield from self._fold(part, folded)

    def _fold(self, fold: Fold, folded: bool) -> Iterator[str]:
        summary = harmless(fold.summary.replace("**", "").replace("`", ""))
        if fold.shown:
            yield from (f"### {summary}", "", *self.parts(fold.parts, named=True, folded=folded))
        else:
            within = self.parts(fold.parts, named=True, folded=True)
            yield from (f"<details><summary>{summary}</summary>", "", *within, "</details>", "")

    def _grid(self, grid: Grid, named: bool, folded: bool) -> Iterator[str]:
        most = MOST_ROWS_IN_ALL if self.full else MOST_ROWS
        if not named:
            yield from (f"**{_line(grid.title)}**", "")
        if grid.rows:
            yield from (*markdown_rows(grid.header, grid.rows[:most], grid.names), "")
        if len(grid.rows) > most:
            yield from (f"{len(grid.rows) - most:,} more rows{'' if self.full else ' with `--full`'}.", "")
        said = self.said | self.open_notes if folded else self.said
        notes = [note for note in grid.notes if note.startswith(configurations.SIGNS) or note not in said]
        self.said.update(notes)
        if notes:
            yield from (*(f"- {_line(note)}" for note in notes), "")
        elif grid.notes:
            self.bare += 1


def _card(card: Card) -> str:
    alike = f"; too close to call: {'; '.join(card.alike)}" if card.alike else ""
    whose = "; ".join(filter(None, (card.interval, card.name)))
    note = f"; {card.note}" if card.note else ""
    return f"- **{_line(card.label)}**: **{_line(card.value)}** ({_line(whose)}){_line(alike)}{_line(note)}"


def _line(text: str) -> str:
    """On a line of its own, and the beginning of nothing: of no heading, quotation or list."""
    line = harmless(text)
    return f"\\{line}" if line[:1] in tuple("#>-+=") else line
