"""Published speeds beside those measured on devices of the same class: references.csv, and rows of a user's own."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.findings import Evidence, grouped
from analysis.frames.configurations import known
from analysis.frames.results import Results, once
from analysis.frames.rows import ConfigurationRow
from analysis.show import notes
from analysis.show.layout import Listing
from analysis.text import number, percent
from analysis.views.target import trained_configurations
from analysis.views.view import Gap, StudyTable, View
from scaling_study.errors import StudyError, printable, quoted
from scaling_study.targets import Target

# A row is one published figure. A reference is one that was read at its source (`verified`); any other is listed with
# the reason, and set beside nothing.
#
#     published in total  / its devices                          -> of one device
#     published minutes   x its devices                          -> device-minutes, of which fewer are faster
#     same model, same size of a sample, same class of device    -> measured / published, and what differs
#     anything else                                              -> nothing

IMAGES, TOKENS, MINUTES = "images/s", "tokens/s", "minutes"
DEVICE, ALL = "device", "all"
YES, NO = "yes", "no"
SYNTHETIC, REAL = "synthetic", "real"
CHOICES: Mapping[str, tuple[str, ...]] = {
    "precision": ("fp32", "tf32", "bf16", "fp16", "fp8"),
    "input": (SYNTHETIC, REAL),
    "unit": (IMAGES, TOKENS, MINUTES),
    "of": (DEVICE, ALL),
    "verified": (YES, NO),
}
WHOLE = ("size", "batch", "watts", "count")
NEEDED = ("model", "precision", "device", "count", "figure", "unit", "of", "source", "verified")
DATE = re.compile(r"\d{4}(-\d\d(-\d\d)?)?")
# A class: devices of one architecture, and words of their names. A device of no class is compared with its like alone.
CLASSES: Mapping[str, frozenset[str]] = {
    "A100": frozenset({"A100", "A800"}),
    "H100 and H200": frozenset({"H100", "H200", "H800", "GH200"}),
    "B200": frozenset({"B100", "B200", "B300", "GB200", "GB300"}),
}
SHOWN = 4  # references beside one configuration, and the fastest; tables/references.csv has all


@dataclass(frozen=True)
class Reference:
    """A row of references.csv. An empty text and None: not published.

    `size`: side of an image in pixels, or tokens of a sequence; `batch`: samples of one device and step; `watts`: the
    power limit of one device; `of`: whether `figure` is of one device or of all `count`; `target` and `data`: of
    minutes, such as accuracy=0.759 and imagenet; `by`: project and software; `doubt`: why the figure may mislead, or
    why it is not verified.
    """

    model: str
    precision: str
    input: str
    size: int | None
    batch: int | None
    device: str
    watts: int | None
    count: int
    figure: float
    unit: str
    of: str
    target: str
    data: str
    by: str
    date: str
    source: str
    verified: bool
    doubt: str

    @property
    def per_device(self) -> float:
        """Samples or tokens a second of one device; of minutes, those of all devices together."""
        if self.unit == MINUTES:
            return self.figure * self.count
        return self.figure / (self.count if self.of == ALL else 1)

    @property
    def quantity(self) -> str:
        """`images/s`, or `device-minutes to accuracy=0.759 on imagenet`."""
        return f"device-minutes to {self.target} on {self.data}" if self.unit == MINUTES else self.unit

    @property
    def name(self) -> str:
        """`milabench: PyTorch, 1 × H200`."""
        return f"{self.by or self.source}, {self.count:,} × {self.device}"


COLUMNS = tuple(field.name for field in fields(Reference))


def published(own: Path | None = None) -> tuple[Reference, ...]:
    """All rows: those shipped, then those of a user's own file. Raises StudyError."""
    return (*_shipped(), *(read(own) if own else ()))


@cache
def _shipped() -> tuple[Reference, ...]:
    with resources.as_file(resources.files("analysis.published").joinpath("references.csv")) as path:
        return read(path)


def read(path: Path) -> tuple[Reference, ...]:
    """The rows of a CSV file. Raises StudyError with a line for each fault."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise StudyError([f"{path}: {error.strerror}"]) from error
    except UnicodeDecodeError as error:
        raise StudyError([f"{path}: no text in UTF-8: {error.reason} at byte {error.start}"]) from error
    rows = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    found, problems = list[Reference](), list[str]()
    try:
        if wrong := list(_wrong_header(list(rows.fieldnames or ()))):
            raise StudyError([f"{path}:1: {problem}" for problem in wrong])
        for cells in rows:
            wrong = list(_wrong(cells))
            problems += [f"{path}:{rows.line_num}: {problem}" for problem in wrong]
            if not wrong:
                found.append(_made({name: printable(str(cells.get(name) or "").strip()) for name in COLUMNS}))
    except csv.Error as error:
        problems.append(f"{path}:{rows.reader.line_num}: no CSV: {error}")
    if problems:
        raise StudyError(problems)
    return tuple(found)


def _wrong_header(names: Sequence[str]) -> Iterator[str]:
    if missing := [name for name in NEEDED if name not in names]:
        yield f"no column {', '.join(missing)}: the first line names the columns, of {', '.join(COLUMNS)}"
    for name in names:
        if name not in COLUMNS:
            yield f"column {quoted(name)} is none of {', '.join(COLUMNS)}"
        elif names.count(name) > 1:
            yield f"column {name} is given twice"


def _wrong(cells: Mapping[Any, Any]) -> Iterator[str]:
    """What is wrong with a row, and what would be right."""
    if None in cells or None in cells.values():
        yield f"{'more' if None in cells else 'fewer'} cells than columns: a text with a comma stands in double quotes"
        return
    texts = dict.fromkeys(COLUMNS, "") | {name: cell.strip() for name, cell in cells.items()}
    for name, value in texts.items():
        if not value and name in NEEDED:
            yield f"{name} is empty: {', '.join(CHOICES.get(name, ('it is needed',)))}"
        elif value and (right := _right(name, value)):
            yield f"{name} {quoted(value)} is {right}"
    if texts["unit"] == MINUTES and not (texts["of"] == ALL and texts["target"] and texts["data"]):
        yield f"minutes are of {ALL} devices, to a target (accuracy=0.759) on a data set (imagenet)"
    if texts["verified"] == NO and not texts["doubt"]:
        yield "what is not verified has its reason in the column doubt"


def _right(name: str, value: str) -> str:
    """What the value of a column would have to be; empty where it is."""
    if name in CHOICES and value not in CHOICES[name]:
        return f"none of {', '.join(CHOICES[name])}"
    if name in WHOLE and not re.fullmatch(r"0*[1-9][0-9]{0,11}", value):
        return "no whole number from 1 on, such as 8"
    if name == "figure" and not 0 < _float(value) < math.inf:
        return "no number above 0, such as 2791 or 13.466"
    if name == "date" and not DATE.fullmatch(value):
        return "no date, such as 2025, 2025-03 or 2025-03-14"
    if name == "target":
        try:
            Target.parse(value)
        except ValueError as error:
            return f"no target: {error}"
    return ""


def _float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _made(texts: Mapping[str, str]) -> Reference:
    """A row without faults."""
    values: dict[str, Any] = dict(texts)
    values |= {name: int(texts[name]) if texts[name] else None for name in WHOLE}
    return Reference(**values | {"figure": float(texts["figure"]), "verified": texts["verified"] == YES})


def _words(device: str) -> frozenset[str]:
    """`NVIDIA H100 80GB HBM3` -> NVIDIA, H100, 80GB, HBM3, and SXM, whose memory that is."""
    words = {re.sub(r"^SXM\d$", "SXM", word) for word in re.findall(r"[A-Z0-9.]+", device.upper())}
    return frozenset(words | ({"SXM"} if {"H100", "HBM3"} <= words else set()))


def device_class(device: str) -> str:
    """The class of a device by its name. A part of a device (MIG) is of no class but its own."""
    words = _words(device)
    return next((name for name, some in CLASSES.items() if words & some and "MIG" not in words), short(device))


def short(device: str) -> str:
    """`NVIDIA H200` -> `H200`."""
    return device.removeprefix("NVIDIA ").removeprefix("Tesla ").strip()


@dataclass(frozen=True)
class Measured:
    """A configuration on GPUs of one kind. `values`: Reference.quantity -> what one device does, as per_device.

    `watts`: mean that one device drew in the timed windows; `size`: as Reference.size. None: not known.
    """

    row: ConfigurationRow
    device: str
    watts: float | None
    precision: str
    input: str
    size: int | None
    values: Mapping[str, float]


@once
def measured(results: Results) -> list[Measured]:
    """Each configuration that may be held against a reference: measured on GPUs of one kind, a GPU a worker, and
    comparable."""
    evidence, tf32 = Evidence(results), results.details.ranks.groupby("configuration").tf32.max()
    made = []
    for row in evidence.rows:
        watts = evidence.fact(row, "watts")
        devices = {name for names in evidence.fact(row, "device_names") for name in names}
        if row["device"] != "cuda" or row["oversubscribed"] or row["not_comparable"] or len(devices) != 1:
            continue
        fp32 = "tf32" if tf32.get(row["configuration"]) == 1 else "fp32"
        size = row["image_size"]
        if known(row["tokens_per_second"]):
            size = round(float(row["tokens_per_second"]) / float(row["samples_per_second"]))
        made.append(
            Measured(
                row,
                devices.pop(),
                sum(watts) / len(watts) if watts else None,
                fp32 if row["precision"] == "fp32" else str(row["precision"]),
                SYNTHETIC if SYNTHETIC in str(row["data_source"]) else REAL,
                int(size) if known(size) else None,
                _values(row, results),
            )
        )
    return made


def _values(row: ConfigurationRow, results: Results) -> dict[str, float]:
    workers, tokens = int(row["workers"]), known(row["tokens_per_second"])
    rate = row["tokens_per_second"] if tokens else row["samples_per_second"]
    values = {TOKENS if tokens else IMAGES: float(rate) / workers}
    trained = trained_configurations(results)
    ours = trained[(trained.configuration == row["configuration"]) & (trained.target != "")]
    for target, seconds in zip(ours.target, ours.get("seconds_to_target", ()), strict=True):
        if known(seconds):
            values[f"device-minutes to {target} on {row['data']}"] = float(seconds) / 60 * workers
    return values


@dataclass(frozen=True)
class Beside:
    """A reference beside a measured configuration. `share`: the measured speed of a device over the published one."""

    measured: Measured
    reference: Reference
    value: float  # measured, of Reference.quantity
    share: float
    differs: tuple[str, ...]  # `bf16 instead of fp16`

    @property
    def distance(self) -> tuple[int, float]:
        """The number of differences, then how far the batch sizes are apart."""
        batch = self.reference.batch
        apart = math.log(int(self.measured.row["batch_per_worker"]) / batch) if batch else 0.0
        return len(self.differs), abs(apart)

    @property
    def power(self) -> tuple[str, ...]:
        """`limit of 700 W, about 510 W drawn here`, where a limit was published."""
        limit, drawn = self.reference.watts, self.measured.watts
        here = f", about {round(drawn, -1):,.0f} W drawn here" if drawn is not None else ""
        return (f"limit of {limit} W{here}",) if limit else ()

    @property
    def said(self) -> str:
        """`130 % of 4,868 images/s a device (milabench: PyTorch, 1 × H200)`."""
        reference = self.reference
        return f"{percent(self.share)} of {number(reference.per_device)} {reference.unit} a device ({reference.name})"


@once
def beside(results: Results) -> dict[str, list[Beside]]:
    """Configuration -> its references, the most alike first; without those that have none."""
    every = [reference for reference in published(results.references) if reference.verified]
    found = {}
    for ours in measured(results):
        pairs = [pair for reference in every if (pair := _pair(ours, reference))]
        if pairs:
            found[str(ours.row["configuration"])] = sorted(pairs, key=lambda pair: pair.distance)
    return found


def _pair(ours: Measured, reference: Reference) -> Beside | None:
    """None where the two are not of one model, size of a sample, class of device and quantity."""
    value = ours.values.get(reference.quantity)
    alike = ours.row["model"] == reference.model and reference.size in (None, ours.size)
    if value is None or not alike or device_class(ours.device) != device_class(reference.device):
        return None
    share = value / reference.per_device
    faster = 1 / share if reference.unit == MINUTES else share
    return Beside(ours, reference, value, faster, tuple(_differs(ours, reference)))


def _differs(ours: Measured, reference: Reference) -> Iterator[str]:
    workers, batch = int(ours.row["workers"]), int(ours.row["batch_per_worker"])
    if not _words(reference.device) <= _words(ours.device):
        yield f"{short(ours.device)} instead of {reference.device}"
    if workers != reference.count:
        yield f"{workers:,} device{'s' * (workers > 1)} instead of {reference.count:,}"
    for here, there in ((ours.precision, reference.precision), (ours.input, reference.input)):
        if there and here != there:
            yield f"{here} instead of {there}{' data' * (there in (SYNTHETIC, REAL))}"
    if reference.batch and batch != reference.batch:
        yield f"batch {batch:,} instead of {reference.batch:,}"


def sentence(results: Results, configuration: str) -> str:
    """The nearest reference of a configuration and the fastest: `130 % of 4,868 images/s a device (...)`; or "".

    Of rates alone: an answer's number is one.
    """
    ours = [pair for pair in beside(results).get(configuration, ()) if pair.reference.unit != MINUTES]
    said = [ours[0].said, min(ours, key=lambda pair: pair.share).said] if ours else []
    return "; ".join(dict.fromkeys(said))


def table(results: Results) -> pd.DataFrame:
    """A row for each configuration and reference; what is the reference's begins with `published_`."""
    rows = [
        {
            **{key: pair.measured.row[key] for key in notes.ABOUT},
            "device": pair.measured.device,
            "watts_drawn": pair.measured.watts,
            "quantity": pair.reference.quantity,
            "measured_per_device": pair.value,
            "published_per_device": pair.reference.per_device,
            "share": pair.share,
            "differs": "; ".join(pair.differs),
            **{f"published_{name}": value for name, value in asdict(pair.reference).items() if name != "verified"},
        }
        for ours in beside(results).values()
        for pair in ours
    ]
    return pd.DataFrame(rows, dtype=object)


def listing(results: Results) -> Listing | None:
    """The nearest references of each configuration, and the fastest; None where there is none."""
    every = beside(results).values()
    if not every:
        return None
    shown: list[Beside] = []
    for ours in every:
        fastest = min(ours, key=lambda pair: pair.share)
        shown += ours[:SHOWN] if fastest in ours[:SHOWN] else [*ours[:SHOWN], fastest]
    lines = [
        "Of one device: what was published in total is divided by its devices, and minutes are multiplied by them. A "
        "percentage is the measured speed over the published one, which has no interval.",
        "Same model, size of a sample and class of device: nothing is said across classes. What differs is named; "
        "versions of software and dates always do.",
        *(f"{source}{_in_brackets(doubts)}." for source, doubts in _sources(pair.reference for pair in shown).items()),
    ]
    if more := sum(map(len, every)) - len(shown):
        lines.append(f"{more} more are not shown. The last of a configuration is the fastest published.")
    return notes.study_listing(results, TITLE, [_cells(pair, results) for pair in shown], lines)


def _in_brackets(doubts: Iterable[str]) -> str:
    said = "; ".join(doubts)
    return f" ({said})" if said else ""


def _sources(every: Iterable[Reference]) -> dict[str, list[str]]:
    """`milabench: https://...` -> each doubt about a figure from there."""
    found: dict[str, list[str]] = {}
    for reference in every:
        doubts = found.setdefault(_source(reference), [])
        doubts += [reference.doubt] if reference.doubt and reference.doubt not in doubts else []
    return found


def _source(reference: Reference) -> str:
    return ": ".join(filter(None, (reference.by.split(":")[0], reference.source)))


def is_on(reference: Reference, device: str) -> bool:
    """True where the words of `device` (H100, "H100 SXM"; empty: any) are in the name of the reference's device."""
    return _words(device) <= _words(reference.device)


def lines(chosen: Iterable[Reference]) -> list[str]:
    """References as text, model by model; then their sources with every doubt; then what is not verified."""
    every = list(chosen)
    numbers = {source: place for place, source in enumerate(_sources(every), start=1)}
    said = []
    for (model, size), ours in grouped((r for r in every if r.verified), lambda r: (r.model, r.size)).items():
        units = {reference.unit for reference in ours}
        of = "tokens" if TOKENS in units else "px" if IMAGES in units else "a side, or tokens"
        said += ["", f"{model}, {size:,} {of}" if size else model]
        said += [f"  {_line(reference)} [{numbers[_source(reference)]}]" for reference in ours]
    said += ["", *(f"[{numbers[source]}] {source}{_in_brackets(doubts)}" for source, doubts in _sources(every).items())]
    unsure = [f"  {r.model}: {_line(r)} [{numbers[_source(r)]}]: {r.doubt}" for r in every if not r.verified]
    return [*said[1:], *(["", "Not verified, and set beside nothing:", *unsure] if unsure else [])]


def _line(reference: Reference) -> str:
    """`22,088 images/s in total, 8 × H100 SXM of 700 W, fp16, synthetic data, batch 1,280, 2025-03`."""
    target = f" to {reference.target} on {reference.data}" if reference.unit == MINUTES else ""
    total = "" if reference.count == 1 or target else " in total" if reference.of == ALL else " a device"
    parts = (
        f"{reference.figure:,.10g} {reference.unit}{target}{total}",
        f"{reference.count:,} × {reference.device}{f' of {reference.watts} W' if reference.watts else ''}",
        reference.precision,
        reference.input and f"{reference.input} data",
        f"batch {reference.batch:,}" if reference.batch else "",
        reference.by.partition(": ")[2],
        reference.date,
    )
    return ", ".join(filter(None, parts))


def _cells(pair: Beside, results: Results) -> dict[str, str]:
    name, batch = notes.series_and_batch(pair.measured.row, results)
    reference = pair.reference
    return {
        "configuration": name,
        "batch": batch,
        "measured, a device": f"{number(pair.value)} {reference.quantity}",
        "of published": percent(pair.share),
        "published, a device": number(reference.per_device),
        "by": f"{reference.name}{f', {reference.date}' if reference.date else ''}",
        "what differs": "; ".join((*pair.differs, *pair.power)) or "nothing that was published",
    }


def _nothing(results: Results) -> str:
    if not (ours := measured(results)):
        return "no comparable configuration ran on GPUs of one kind, and what is published is of GPUs"
    devices = ", ".join(sorted({short(one.device) for one in ours}))
    models = ", ".join(sorted({reference.model for reference in published(results.references) if reference.verified}))
    return (
        f"this study measured {', '.join(results.models)} on {devices}. Published are {models}; a reference has the "
        "same model, size of a sample and class of device (`scaling-study references` lists them)"
    )


TITLE = "Published speeds beside measured ones"
VIEW = View(
    "Is that a good speed?",
    (StudyTable("references", listing, table, TITLE, "published", Gap("No published speed is comparable", _nothing)),),
)
