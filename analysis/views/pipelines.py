"""Pipelines: bubble, cut, stages, schedules as pictures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

from analysis import findings
from analysis.findings import DOUBT, Evidence, Finding, grouped
from analysis.frames import configurations as comparability
from analysis.frames import results as series
from analysis.frames.configurations import known
from analysis.frames.details import BACKWARD, FORWARD, INPUT, WEIGHT
from analysis.frames.results import Results
from analysis.frames.rows import ConfigurationRow, as_rows
from analysis.show import notes, style
from analysis.show.layout import Listing
from analysis.statistics import bubble
from analysis.statistics.bubble import NAIVE
from analysis.text import file_name as cleaned
from analysis.text import megabytes, percent_to_a_tenth, percentage_points, percents
from analysis.views.throughput import throughput_text
from analysis.views.view import Detector, Drawing, StudyTable, View
from scaling_study.frameworks import FRAMEWORKS

# The shape of a pipeline in words: `1f1b, m = 8`, and as the name of a file.
#
# A row here is one of columns.of_configurations. Two frameworks have one order only, and no trial key for it.

Row = ConfigurationRow
OWN_SCHEDULE = {"naive_model_parallel": NAIVE, "fairscale_pipe": "gpipe"}


def is_cut(row: Row) -> bool:
    """True where the workers hold stages of one model."""
    table = FRAMEWORKS.get(str(row["framework"]))
    return table is not None and table.cuts_model


def schedule(row: Row) -> str:
    """As asked for, or as its framework does by itself; empty where unknown."""
    return str(row["schedule"]) if known(row["schedule"]) else OWN_SCHEDULE.get(str(row["framework"]), "")


def shape_workers(row: Row) -> int:
    """Workers along one pipeline."""
    return int(row["stages"]) if known(row["stages"]) else int(row["workers"])


def micro_batches(row: Row) -> int:
    return int(row["micro_batches"]) if known(row["micro_batches"]) else 1


def virtual_stages(row: Row) -> int:
    return int(row["virtual_stages"]) if known(row["virtual_stages"]) else 1


def replicas(row: Row) -> int:
    return max(1, int(row["workers"]) // shape_workers(row))


def shape_words(row: Row, cut: bool = False) -> str:
    """`interleaved_1f1b, m = 8, 2 workers x 2 stages, 2 replicas`, with `cut` where the model is cut."""
    parts = [schedule(row) or str(row["framework"])]
    if OWN_SCHEDULE.get(str(row["framework"]), NAIVE) != NAIVE:
        parts[0] += f" ({row['framework']})"
    if schedule(row) != NAIVE:
        parts.append(f"m = {micro_batches(row)}")
    p, v, copies = shape_workers(row), virtual_stages(row), replicas(row)
    parts.append(f"{p} workers × {v} stages" if v > 1 else f"{p} stages")
    parts += [f"{copies} replicas"] if copies > 1 else []
    parts += [f"cut {row['stage_cut']}"] if cut and known(row["stage_cut"]) else []
    return ", ".join(parts)


def file_name(row: Row) -> str:
    """`transformer_lm-1f1b-p2-m8`; of two configurations that have no more to tell them apart, both have the same."""
    parts = [str(row["model"]), schedule(row) or str(row["framework"]), f"p{shape_workers(row)}"]
    parts += [f"v{virtual_stages(row)}"] if virtual_stages(row) > 1 else []
    parts += [f"m{micro_batches(row)}"] if schedule(row) != NAIVE else []
    parts += [f"r{replicas(row)}"] if replicas(row) > 1 else []
    return cleaned("-".join(parts))


# Each stage's share of the work: of the seconds it computed, and of the parameters it holds.


def of_time(events: pd.DataFrame) -> dict[int, float]:
    """Stage -> its share of all seconds that any stage computed. `events` (details.Event) of one configuration."""
    return _shares((events.end_seconds - events.start_seconds).groupby(events.stage).sum())


def of_workers(events: pd.DataFrame) -> dict[int, float]:
    """Worker -> its share of them, all its stages together."""
    return _shares((events.end_seconds - events.start_seconds).groupby(events.worker).sum())


def of_parameters(stages: pd.DataFrame) -> dict[int, float]:
    """Stage -> its share of all parameters, those in several stages counted in each. `stages`: events.STAGE_COLUMNS."""
    return _shares(stages.groupby("stage").parameters.max())


def activations(stages: pd.DataFrame) -> dict[int, int]:
    """Worker -> the peak bytes of what autograd kept there, the most of all replicas; empty where nobody counted.

    Of a process that is all workers at once there is one number, and it stands at its first.
    """
    ranks = stages[stages.activations_bytes.notna()].groupby(["repeat", "rank"])
    held = pd.DataFrame({"worker": ranks.worker.min(), "bytes": ranks.activations_bytes.max()})
    return {int(str(worker)): int(size) for worker, size in held.groupby("worker").bytes.max().items()}


def _shares(sums: pd.Series) -> dict[int, float]:
    whole = float(sums.sum())
    return {int(str(index)): float(value) / whole for index, value in sums.items()} if whole else {}


# One row a pipeline: its speed, its bubble beside theory and replay, what its cut allows, what each stage holds.
#
# bubble   = replay_equal + added_by_cut + added_by_transfers       statistics/bubble.py defines the replays
# speed-up = workers x (1 - bubble) / computing, less what lies outside the makespan

KEYS = ("schedule", "stages", "virtual_stages", "micro_batches", "replicas", "stage_cut")
SPEED = ("status", "n", "samples_per_second", "interval_low", "interval_high", "speedup", "efficiency")
BUBBLE = (
    "bubble",
    "bubble_low",
    "bubble_high",
    "bubble_steps",
    "theory",
    "theory_formula",
    "theory_why",
    "replay_equal",
    "replay_measured",
    "added_by_cut",
    "added_by_transfers",
    "replay_why",
    "computing",
)
STAGES = ("cap", "most_speedup", "busiest_worker", "time_shares", "parameter_shares", "layers", "activations_bytes")
COLUMNS = (
    "configuration",
    "series",
    "series_order",
    "model",
    "framework",
    *KEYS,
    "workers",
    "batch_per_worker",
    "global_batch",
    *SPEED,
    *BUBBLE,
    *STAGES,
    "parity",
    "not_comparable",
)


def table(results: Results) -> pd.DataFrame:
    """COLUMNS, for every configuration whose workers hold stages of one model, measured or not.

    Bubbles and shares are between 0 and 1, and None where the records have no timeline. `replicas`, `virtual_stages`
    and `schedule` are filled in where a framework has no such key. `cap` is the most that this schedule can gain over
    one process with this cut, `most_speedup` the most that any can; shares, layers and bytes are separated by `;`.
    """
    rows = [row for row in results.rows if is_cut(row)]
    pipelines = [_row(row, results) for row in rows]
    frame = pd.DataFrame(pipelines, columns=list(COLUMNS), dtype=object)
    return frame.sort_values(["model", "global_batch", "series_order"], kind="stable", ignore_index=True)


def events_of(row: Row, results: Results) -> pd.DataFrame:
    """The events (details.Event) of one configuration, over all its repeats."""
    events = results.details.events
    ours: pd.DataFrame = events[events.configuration == row["configuration"]]
    return ours


def _row(row: ConfigurationRow, results: Results) -> dict[Any, Any]:
    events, stages = events_of(row, results), results.details.stages
    stages = stages[stages.configuration == row["configuration"]]
    full = {
        "schedule": schedule(row) or None,
        "stages": shape_workers(row),
        "virtual_stages": virtual_stages(row),
        "micro_batches": micro_batches(row),
        "replicas": replicas(row),
    }
    return {**row, **full, **_holds(stages), **_bubble(row, events), **_time(row, events)}


def _holds(stages: pd.DataFrame) -> dict[str, Any]:
    """Each stage's share of the parameters, its layers, and the bytes of its activations."""
    layers = stages.drop_duplicates("stage").sort_values("stage").layers
    return {
        "parameter_shares": joined(of_parameters(stages)),
        "layers": ";".join(layers),
        "activations_bytes": joined(activations(stages)),
    }


def _bubble(row: ConfigurationRow, events: pd.DataFrame) -> dict[str, Any]:
    """The measured bubble, and the three parts that it falls into."""
    p, v = shape_workers(row), virtual_stages(row)
    should = bubble.bubble(schedule(row), p, micro_batches(row), v)
    columns = {"theory": should.bubble, "theory_formula": should.formula, "theory_why": should.why}
    if events.empty:
        return columns
    steps = bubble.of_steps(events, p)
    measured = bubble.mean(steps)
    columns["computing"] = _computing(row, steps)
    columns |= {
        "bubble": measured.mean,
        "bubble_low": measured.low,
        "bubble_high": measured.high,
        "bubble_steps": measured.steps,
    }
    try:
        order = bubble.order_of(bubble.median_step(events))
        equal, real = (bubble.replay_bubble(order, how) for how in (bubble.equal, bubble.measured(events)))
    except ValueError as error:
        return columns | {"replay_why": str(error)}
    return columns | {
        "replay_equal": equal,
        "replay_measured": real,
        "added_by_cut": real - equal,
        "added_by_transfers": measured.mean - real,
    }


def _computing(row: ConfigurationRow, steps: pd.DataFrame) -> float | None:
    """Seconds that all workers compute for a sample, over those that the baseline takes; None without a baseline."""
    if not known(row["speedup"]) or not known(row["samples_per_second"]):
        return None
    busy = float(steps.busy_seconds.mean()) / int(row["batch_per_worker"])
    return busy * float(row["samples_per_second"]) / float(row["speedup"])


def _time(row: ConfigurationRow, events: pd.DataFrame) -> dict[str, Any]:
    """Each stage's share of the time, and what the busiest worker allows."""
    workers = of_workers(events)
    if not workers:
        return {}
    each = [workers.get(worker, 0.0) for worker in range(shape_workers(row))]
    return {
        "time_shares": joined(of_time(events)),
        "busiest_worker": max(workers, key=lambda worker: workers[worker]),
        "most_speedup": bubble.most_speedup(each),
        "cap": bubble.cap(schedule(row), each, micro_batches(row)),
    }


def joined(values: Mapping[int, float]) -> str | None:
    """`0.25;0.75`, in the order of the keys; None for nothing."""
    return (
        ";".join(f"{values[key]:.6g}" if isinstance(values[key], float) else str(values[key]) for key in sorted(values))
        or None
    )


def parted(text: Any) -> list[float]:
    """The numbers in a text that `joined` made; empty for none."""
    return [float(part) for part in str(text).split(";")] if known(text) and text else []


# The table of pipelines, and under it the cuts that limit the speed-up.

BALANCED = 0.9  # a cut that allows less than this share of the ideal speed-up is said loudly
MOST_NOTES = 6
HEADER = (
    "schedule",
    "stages",
    "virtual stages",
    "micro-batches",
    "replicas",
    "stage cut",
    "global batch",
    "samples/s",
    "bubble measured",
    "theory",
    "replay, equal stages",
    "replay, measured stages",
    "the cut adds",
    "transfers and overhead add",
    "computing",
    "speed-up",
    "cap of the cut",
    "share of time by stage",
    "share of parameters",
    "activations by worker (MB)",
)


def listing(results: Results) -> Listing | None:
    """A row a pipeline; None where the study has none."""
    pipelines = table(results)
    if pipelines.empty:
        return None
    configurations = results.configurations
    ours = configurations[configurations.configuration.isin(pipelines.configuration)]
    by_name = {row["configuration"]: row for row in results.rows}
    names = [key for key in series.keys(configurations) if key not in KEYS]
    first = [_name(by_name[name], names, pipelines.model.nunique() > 1) for name in pipelines.configuration]
    lines = [
        *comparability.sentences(ours),
        *unbalanced(pipelines),
        *_unplayed(pipelines),
        *_noted(pipelines, results),
        *comparability.checked(ours),
        *_legend(pipelines),
        notes.source(results),
    ]
    shown = zip(first, as_rows(pipelines), strict=True)
    rows = [(name, *_cells(row, by_name[row["configuration"]])) for name, row in shown]
    return Listing(f"Pipelines ({results.heading})", ("configuration", *HEADER), tuple(rows), tuple(lines))


def unbalanced(pipelines: pd.DataFrame) -> list[str]:
    """One loud sentence for each cut whose busiest worker keeps every schedule below BALANCED of the ideal."""
    cut = ["model", "framework", "stages", "virtual_stages", "stage_cut", "layers", "busiest_worker"]
    held = pipelines[(pipelines.most_speedup.astype(float) < BALANCED * pipelines.stages.astype(float)).fillna(False)]
    lines = []
    for _, group in held.groupby(cut, sort=False, dropna=False):
        worst = group.sort_values("most_speedup").iloc[0]
        lines.append(
            f"**{_who(worst)} does {100 / worst.most_speedup:.0f} % of the work: the speed-up of any schedule is at "
            f"most {worst.most_speedup:.2f}, see F16** ({worst.model}: {comparability.names(group, pipelines)})."
        )
    return lines


def _who(row: Any) -> str:
    p, v = int(row.stages), int(row.virtual_stages)
    if v == 1:
        return f"stage {row.busiest_worker} (of 0 to {p - 1})"
    return f"worker {row.busiest_worker} (of 0 to {p - 1}, {v} stages each)"


def _name(row: ConfigurationRow, names: list[str], several_models: bool) -> str:
    label = series.label(row, names, several_frameworks=True)
    model = f"{row['model']}, " if several_models else ""
    return f"{model}{label} {comparability.sign(row)}".rstrip()


def _cells(row: ConfigurationRow, configuration: ConfigurationRow) -> tuple[str, ...]:
    measured = percent_to_a_tenth(row["bubble"])
    if measured:
        measured += f" ({100 * row['bubble_low']:.1f} to {100 * row['bubble_high']:.1f})"
    gain = f"{row['speedup']:.2f}" if known(row["speedup"]) else ""
    cap = f"{row['cap']:.2f} of {row['stages']}" if known(row["cap"]) else ""
    activations = parted(row["activations_bytes"])
    shape_of = [row["schedule"], row["stages"], row["virtual_stages"], row["micro_batches"], row["replicas"]]
    return (
        *(str(value) if known(value) else "" for value in (*shape_of, row["stage_cut"], row["global_batch"])),
        throughput_text(configuration),
        measured,
        *(percent_to_a_tenth(row[name]) for name in ("theory", "replay_equal", "replay_measured")),
        *(percentage_points(row[name]) for name in ("added_by_cut", "added_by_transfers")),
        f"{row['computing']:.2f}x" if known(row["computing"]) else "",
        gain,
        cap,
        *(percents(parted(row[name])) for name in ("time_shares", "parameter_shares")),
        " / ".join(megabytes(size) for size in activations),
    )


def _unplayed(pipelines: pd.DataFrame) -> list[str]:
    """Sentences naming the pipelines that could not be replayed, each with the reason."""
    return [
        f"Not replayed: {why} ({comparability.names(group, pipelines)})."
        for why, group in pipelines[pipelines.replay_why.notna()].groupby("replay_why", sort=False)
    ]


def _noted(pipelines: pd.DataFrame, results: Results) -> list[str]:
    """Notes of the ranks themselves, such as those on BatchNorm's micro-batches: each once, with its configurations."""
    ours = results.details.notes
    ours = ours[ours.configuration.isin(pipelines.configuration)]
    lines = [
        f"{note} ({comparability.names(pipelines[pipelines.configuration.isin(group.configuration)], pipelines)})."
        for note, group in ours.groupby("note", sort=False)
    ]
    more = [f"{len(lines) - MOST_NOTES} more notes: see the records."] if len(lines) > MOST_NOTES else []
    return lines[:MOST_NOTES] + more


def _legend(pipelines: pd.DataFrame) -> list[str]:
    lines = [
        "Bubble: the share of workers x makespan without a forward or backward; mean over the instrumented steps "
        "(smallest to largest). Replay: the same order simulated without transfers, with equal stages and with the "
        "measured seconds of each stage. Measured = replay with equal stages + what the cut adds + what transfers and "
        "overhead add, in percentage points.",
    ]
    rows = as_rows(pipelines.drop_duplicates(["schedule", "theory_formula", "theory_why"]))
    reasons = [f" [none claimed: {row['theory_why']}]" if row["theory_why"] else "" for row in rows]
    formulas = [f"{row['schedule']}: {row['theory_formula']}{why}" for row, why in zip(rows, reasons, strict=True)]
    lines.append(f"Theory, with p workers, v stages each, m micro-batches: {'; '.join(formulas)}.")
    if pipelines.computing.notna().any():
        lines.append(
            "Computing: the seconds that all workers compute for a sample, over those of one process. Above 1, "
            "micro-batches are less efficient than the whole batch, or workers contend (memory, caches, clock). "
            "Speed-up = workers x (1 - bubble) / computing, without the input and the optimiser's step."
        )
    if pipelines.cap.notna().any():
        lines.append(
            "Cap of the cut: upper bound of this schedule's speed-up with these shares of the time s (gpipe: "
            "m / (1 + (m-1) max s); any schedule: 1 / max s), of the number of workers (F16)."
        )
    if (pipelines.virtual_stages.astype(int) > 1).any():
        lines.append("Activations: by worker, all its stages together; worker 0 first.")
    if any(schedule(row) == bubble.NAIVE for row in rows):
        lines.append("Naive: the whole batch goes from stage to stage, so one worker computes at a time.")
    return lines


# The limit of a pipeline's cut. F16: shares of 24, 21, 48 and 6.5 % cap every schedule at 2.08 x. Nobody said so.


def unbalanced_cuts(evidence: Evidence) -> Iterator[Finding]:
    """One for each cut of a model, with the cap of any schedule and the least cap of those that were run."""
    if not any(is_cut(row) for row in evidence.rows):
        return
    by_id = {row["configuration"]: row for row in evidence.rows}
    capped = [row for row in as_rows(table(evidence.results)) if known(row["most_speedup"])]
    held = [row for row in capped if row["most_speedup"] < BALANCED * int(row["stages"])]
    for rows in grouped(held, lambda row: tuple(row[key] for key in ("model", "stages", "layers"))).values():
        worst = min(rows, key=lambda row: row["most_speedup"])
        caps = [row["cap"] for row in rows if known(row["cap"])]
        ours = [by_id[row["configuration"]] for row in rows if row["configuration"] in by_id]
        least = f"; with its schedule and micro-batches at most {min(caps):.2f} x" if caps else ""
        text = (
            f"The stages take {percents(parted(worst['time_shares']))} of the time: on {worst['stages']} workers no "
            f"schedule is faster than "
            f"{worst['most_speedup']:.2f} x one process{least} ({findings.named(ours)}). Cut it "
            "evenly (stage_cut), or state this cap beside the speed-up."
        )
        yield findings.about("F16", "A cut that caps the speed-up", text, DOUBT, ours)


# The figure: one step of a pipeline, stage by stage, and the schedules of a model below each other.
#
#     stage 0   F0 F1 F2 F3 ..... B0 B1 B2 B3        boxes: forward, backward (or its two halves), with the number
#     stage 1   .. F0 F1 F2 F3 B0 B1 B2 B3 ..        of the micro-batch; grey: the worker is idle
#
# Where a worker holds several stages, their rows stand together and share its grey.

NAMES = {
    FORWARD: "forward",
    BACKWARD: "backward",
    INPUT: "backward: input",
    WEIGHT: "backward: weights",
}
COLOURS = dict(zip(NAMES, style.style_colours(len(NAMES)), strict=True))
IDLE = "#d9d9d9"
ROW, APART = 0.24, 0.3  # inches of a row; of a row, between two workers
WIDTH = 6.4  # inches of a panel
NUMBER = 6.0  # points
MOST_PANELS = 12  # of one figure
LEAST_BOX = 0.02  # inches, below which an edge would hide the box


@dataclass(frozen=True)
class Panel:
    """One step of one replica. `step`: details.Event with seconds since the step's first event."""

    title: str
    file_name: str
    model: str
    step: pd.DataFrame
    replicas: int

    @property
    def seconds(self) -> float:
        return float(self.step.end_seconds.max())

    @property
    def rows(self) -> float:
        return max(self.places().values()) + 0.5

    def places(self) -> dict[int, float]:
        """Stage -> the middle of its row, counted in rows from the top; workers stand apart."""
        places, top, before = {}, 0.0, None
        for worker, stage in sorted({(int(w), int(s)) for w, s in zip(self.step.worker, self.step.stage, strict=True)}):
            top += APART if before not in (None, worker) else 0.0
            places[stage], before, top = top + 0.5, worker, top + 1.0
        return places


def draw(results: Results) -> dict[str, Figure]:
    """`timeline-<shape>` for each pipeline with a timeline, `timelines-<model>` where a model has several."""
    panels = _panels(results)
    figures = {f"timeline-{panel.file_name}": _figure([panel], panel.title, results) for panel in panels}
    for model in results.models:
        ours = [panel for panel in panels if panel.model == model]
        if len(ours) > 1:
            figures[f"timelines-{cleaned(model)}"] = _figure(ours, f"Pipelines of {model}", results)
    return figures


def _panels(results: Results) -> list[Panel]:
    rows = as_rows(table(results))
    shown = [(row, events) for row in rows if not (events := events_of(row, results)).empty]
    names = [file_name(row) for row, _ in shown]
    titles = _titles([row for row, _ in shown])
    panels = []
    for (row, events), name, title in zip(shown, names, titles, strict=True):
        step = bubble.median_step(events)
        zero = step.start_seconds.min()
        step = step.assign(start_seconds=step.start_seconds - zero, end_seconds=step.end_seconds - zero)
        unique = name if names.count(name) == 1 else f"{name}-{str(row['configuration']).rpartition('-')[2]}"
        panels.append(Panel(title, unique, str(row["model"]), step, row["replicas"] or 1))
    return panels


def _titles(rows: Sequence[ConfigurationRow]) -> list[str]:
    """`1f1b, m = 8, 2 stages: bubble 14 % (theory 11 %)`, with cut and batch where they vary."""
    cuts, batches = ({row[key] for row in rows} for key in ("stage_cut", "global_batch"))
    titles = []
    for row in rows:
        words = shape_words(row, cut=len(cuts) > 1) + (f", batch {row['global_batch']}" if len(batches) > 1 else "")
        should = f"theory {100 * row['theory']:.0f} %" if known(row["theory"]) else "no theory"
        titles.append(f"{words}: bubble {100 * row['bubble']:.0f} % ({should})")
    return titles


def _figure(panels: Sequence[Panel], title: str, results: Results) -> Figure:
    """Panels below each other on one scale of time, which stands under the last."""
    alone, shown = len(panels) == 1, panels[:MOST_PANELS]
    longest = max(panel.seconds for panel in shown)
    layout = style.Layout(
        panel_width=WIDTH,
        panel_heights=tuple(panel.rows * ROW for panel in shown),
        left=0.2 + max(style.inches(text, style.SMALL) for panel in shown for text in _labels(panel)),
        gutters=(0.5 + max(style.inches(name, style.SMALL) for name in [*NAMES.values(), "idle"]),),
        above=0.12 if alone else 0.26,
        below=0.1,
        last_below=0.36,
    )
    heading = f"{panels[0].model}, {title}" if alone else f"{title}: {results.study.name}"
    sheet = style.sheet(len(shown), 1, layout, heading, _footnote(panels, shown, results))
    for index, panel in enumerate(shown):
        axis, _ = sheet.at(index)
        if not alone:
            axis.set_title(panel.title, loc="left", weight="bold")
        _panel(axis, panel, 1000 * longest)
        axis.tick_params(labelbottom=panel is shown[-1])
    axis.set_xlabel("time in the step (ms)")
    kinds = [kind for kind in NAMES if any(kind in set(panel.step.kind) for panel in shown)]
    entries = [*((COLOURS[kind], NAMES[kind]) for kind in kinds), (IDLE, "idle")]
    style.colour_key(sheet.at(0)[0], entries, left=6, line=style.SMALL * style.LINE, gap=10)
    return sheet.figure


def _footnote(panels: Sequence[Panel], shown: Sequence[Panel], results: Results) -> list[str]:
    what = "One instrumented step of the first repeat, the median one by makespan; numbers are micro-batches."
    if len(shown) > 1:
        what += " All on one scale of time."
    if any(panel.replicas > 1 for panel in shown):
        what += " Of several replicas, the first."
    if len(panels) > len(shown):
        what += f" The first {len(shown)} of {len(panels)}; each has a figure of its own."
    return [what, f"{notes.source(results)}."]


def _panel(axis: Axes, panel: Panel, milliseconds: float) -> None:
    axis.set_xlim(0, milliseconds)
    places = panel.places()
    inch = WIDTH / milliseconds
    for _, ours in panel.step.groupby("worker"):
        rows = [places[int(stage)] for stage in ours.stage]
        top, height = min(rows) - 0.5, max(rows) - min(rows) + 1.0
        axis.add_patch(Rectangle((0, top), 1000 * panel.seconds, height, facecolor=IDLE, edgecolor="none", zorder=1))
        for start, end in zip(ours.start_seconds, ours.end_seconds, strict=True):  # busy, with whichever stage
            box = (1000 * start, top), 1000 * (end - start), height
            axis.add_patch(Rectangle(*box, facecolor="white", edgecolor="white", linewidth=0.2, zorder=2))
    for kind, micro_batch, stage, start, end in zip(
        panel.step.kind,
        panel.step.micro_batch,
        panel.step.stage,
        panel.step.start_seconds,
        panel.step.end_seconds,
        strict=True,
    ):
        left, wide, middle = 1000 * start, 1000 * (end - start), places[int(stage)]
        edge = 0.5 if wide * inch > LEAST_BOX else 0.0
        axis.add_patch(
            Rectangle(
                (left, middle - 0.46), wide, 0.92, facecolor=COLOURS[kind], edgecolor="white", linewidth=edge, zorder=3
            )
        )
        if style.inches(str(micro_batch), NUMBER) + 0.03 < wide * inch:
            axis.text(
                left + wide / 2,
                middle,
                str(micro_batch),
                ha="center",
                va="center_baseline",
                fontsize=NUMBER,
                color="white",
                weight="bold",
                zorder=4,
            )
    axis.set_ylim(panel.rows, 0)
    axis.set_yticks(list(places.values()), _labels(panel))
    axis.yaxis.set_minor_locator(NullLocator())
    axis.tick_params(axis="y", length=0)
    axis.xaxis.set_major_locator(MaxNLocator(8))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axis.grid(False, axis="y")
    axis.spines["left"].set_visible(False)


def _labels(panel: Panel) -> list[str]:
    """`stage 0`, or `worker 0: stage 3` where a worker has several."""
    held = dict(zip(panel.step.stage.astype(int), panel.step.worker.astype(int), strict=True))
    several = len(held) > len(set(held.values()))
    return [f"worker {held[stage]}: stage {stage}" if several else f"stage {stage}" for stage in panel.places()]


VIEW = View(
    "How long do the stages of a pipeline idle?",
    (StudyTable("pipeline", listing, table),),
    (Drawing("timeline", draw, several=True, overview="timelines"),),
    (Detector(unbalanced_cuts, 10),),
)
