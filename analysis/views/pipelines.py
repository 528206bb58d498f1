"""Pipelines: bubble, cut, stages, schedules as pictures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from analysis import findings
from analysis.findings import DOUBT, Evidence, Finding, grouped
from analysis.frames import configurations as comparability
from analysis.frames import results as series
from analysis.frames.configurations import known
from analysis.frames.details import BACKWARD, FORWARD, INPUT, WEIGHT
from analysis.frames.results import Results
from analysis.frames.rows import ConfigurationRow, as_rows, bounded
from analysis.show import notes, style
from analysis.show.layout import Listing
from analysis.statistics import bubble
from analysis.statistics.bubble import NAIVE
from analysis.text import file_name as cleaned
from analysis.text import first_few, megabytes, percent, percentage_points, percents
from analysis.views.throughput import throughput_text
from analysis.views.view import Drawing, StudyTable, View
from scaling_study.frameworks import FRAMEWORKS

Row = ConfigurationRow
OWN_SCHEDULE = {"naive_model_parallel": NAIVE, "fairscale_pipe": "gpipe"}  # they have one order only, and no trial key


class Shape(NamedTuple):
    """The keys of a configuration that say how its model is cut and in which order its stages work."""

    schedule: str  # "": not known
    stages: int  # workers along one pipeline
    virtual_stages: int  # of each worker
    micro_batches: int
    replicas: int


def is_cut(row: Row) -> bool:
    """True where the workers hold stages of one model."""
    table = FRAMEWORKS.get(str(row["framework"]))
    return table is not None and table.cuts_model


def shape_of(row: Row) -> Shape:
    """The shape as it was asked for, with what a framework does by itself filled in."""
    own = OWN_SCHEDULE.get(str(row["framework"]), "")
    stages, v, m = (int(row[key]) if known(row[key]) else 1 for key in ("stages", "virtual_stages", "micro_batches"))
    stages = stages if known(row["stages"]) else int(row["workers"])
    schedule = str(row["schedule"]) if known(row["schedule"]) else own
    replicas = int(row["replicas"]) if known(row["replicas"]) else max(1, int(row["workers"]) // stages)
    return Shape(schedule, stages, v, m, replicas)


def shape_words(row: Row, cut: bool = False) -> str:
    """`interleaved_1f1b, m = 8, 2 workers x 2 stages, 2 replicas`, with `cut` where the model is cut."""
    schedule, p, v, m, copies = shape_of(row)
    name, width = schedule or str(row["framework"]), int(row["workers"]) // p // copies
    own = OWN_SCHEDULE.get(str(row["framework"]), NAIVE) != NAIVE
    parts = notes.holding(
        (True, f"{name} ({row['framework']})" if own else name),
        (schedule != NAIVE, f"m = {m}"),
        (True, f"{p} workers × {v} stages" if v > 1 else f"{p} stages"),
        (width > 1, f"matrices over {width}"),
        (copies > 1, f"{copies} replicas"),
        (known(row["shard_group"]), f"shards over {row['shard_group']}"),
        (cut and known(row["stage_cut"]), f"cut {row['stage_cut']}"),
    )
    return ", ".join(parts)


def file_name(row: Row) -> str:
    """`transformer_lm-1f1b-p2-m8`; of two configurations that have no more to tell them apart, both have the same."""
    schedule, p, v, m, copies = shape_of(row)
    parts = notes.holding((v > 1, f"v{v}"), (schedule != NAIVE, f"m{m}"), (copies > 1, f"r{copies}"))
    return cleaned("-".join([str(row["model"]), schedule or str(row["framework"]), f"p{p}", *parts]))


# One row a pipeline: its speed, its bubble beside theory and replay, what its cut allows, what each stage holds.
#
# bubble   = replay_equal + added_by_cut + added_by_transfers       statistics/bubble.py defines the replays
# speed-up = workers x (1 - bubble) / computing, less what lies outside the makespan

ABOUT = ("configuration", "series", "series_order", "model", "framework")
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
    "cap",
    "most_speedup",
    "busiest_worker",
    "time_shares",
)


def pipelines_table(results: Results) -> pd.DataFrame:
    """A row for every configuration whose workers hold stages of one model, measured or not.

    Bubbles and shares are between 0 and 1, and None where the records have no timeline. `replicas`, `virtual_stages`
    and `schedule` are filled in where a framework has no such key. `cap` is the most that this schedule can gain over
    one process with this cut, `most_speedup` the most that any can; shares, layers and bytes are separated by `;`.
    """
    frame = pd.DataFrame([_row(row, results) for row in results.rows if is_cut(row)], dtype=object)
    if frame.empty:
        return frame
    return frame.sort_values(["model", "global_batch", "series_order"], kind="stable", ignore_index=True)


def events_of(row: Row, results: Results) -> pd.DataFrame:
    """The events (details.Event) of one configuration, over all its repeats."""
    events = results.details.events
    ours: pd.DataFrame = events[events.configuration == row["configuration"]]
    return ours


def _row(row: ConfigurationRow, results: Results) -> dict[str, Any]:
    stages = results.details.stages
    stages = stages[stages.configuration == row["configuration"]]
    shape = shape_of(row)
    return {
        **{key: row[key] for key in ABOUT},
        **shape._asdict(),
        "schedule": shape.schedule or None,
        **{key: row[key] for key in ("stage_cut", "workers", "batch_per_worker", "global_batch", *SPEED)},
        **dict.fromkeys(BUBBLE),
        **_bubble(row, shape, events_of(row, results)),
        "parameter_shares": joined(shares(stages.groupby("stage").parameters.max())),
        "layers": ";".join(stages.drop_duplicates("stage").sort_values("stage").layers),
        "activations_bytes": joined(activations(stages)),
        "parity": row["parity"],
        "not_comparable": row["not_comparable"],
    }


def _bubble(row: ConfigurationRow, shape: Shape, events: pd.DataFrame) -> dict[str, Any]:
    """BUBBLE: the measured bubble, the parts that it falls into, and what the busiest worker allows."""
    schedule, p, v, m, _ = shape
    should = bubble.bubble(schedule, p, m, v)
    columns = {"theory": should.bubble, "theory_formula": should.formula, "theory_why": should.why}
    if events.empty:
        return columns
    steps = bubble.of_steps(events, p)
    measured = bubble.mean(steps)
    seconds = events.end_seconds - events.start_seconds
    workers = shares(seconds.groupby(events.worker).sum())
    each = workers.reindex(range(p), fill_value=0.0).tolist()
    columns |= bounded("bubble", measured.mean, measured.low, measured.high)
    columns |= {
        "bubble_steps": measured.steps,
        "cap": bubble.cap(schedule, each, m),
        "most_speedup": bubble.most_speedup(each),
        "busiest_worker": int(np.argmax(each)),
        "time_shares": joined(shares(seconds.groupby(events.stage).sum())),
    }
    if known(row["speedup"]) and known(row["samples_per_second"]):
        # Seconds that all workers compute for a sample, over those that the baseline takes.
        busy = float(steps.busy_seconds.mean()) / int(row["batch_per_worker"])
        columns["computing"] = busy * float(row["samples_per_second"]) / float(row["speedup"])
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


def shares(sums: pd.Series[Any]) -> pd.Series[Any]:
    """Each of these as a share of all of them."""
    return sums / sums.sum()


def activations(stages: pd.DataFrame) -> pd.Series[Any]:
    """Worker -> the peak bytes of what autograd kept there, the most of all replicas; empty where nobody counted.

    Of a process that is all workers at once there is one number, and it stands at its first.
    """
    ranks = stages[stages.activations_bytes.notna()].groupby(["repeat", "rank"])
    held = pd.DataFrame({"worker": ranks.worker.min(), "bytes": ranks.activations_bytes.max()})
    return held.groupby("worker").bytes.max().astype("int64")


def joined(values: pd.Series[Any]) -> str | None:
    """`0.25;0.75`, or None for nothing; `parted` takes it apart."""
    texts = (f"{value:.6g}" if isinstance(value, float) else str(value) for value in values.tolist())
    return ";".join(texts) or None


def parted(text: str | None) -> list[float]:
    return [float(part) for part in text.split(";")] if text else []


BALANCED = 0.9  # a cut that allows less than this share of the ideal speed-up is said loudly
MOST_NOTES = 6


def listing(results: Results) -> Listing | None:
    """A row a pipeline; None where the study has none."""
    pipelines = pipelines_table(results)
    if pipelines.empty:
        return None
    ours = results.among(pipelines.configuration)
    names = [key for key in series.keys(results.configurations) if key not in (*Shape._fields, "stage_cut")]
    several = pipelines.model.nunique() > 1
    lines = [
        *comparability.sentences(ours),
        *unbalanced(capped(pipelines, results), pipelines),
        *(
            f"Not replayed: {why} ({comparability.names(group, pipelines)})."
            for why, group in pipelines[pipelines.replay_why.notna()].groupby("replay_why", sort=False)
        ),
        *_noted(pipelines, results),
        *comparability.checked(ours),
        *_legend(pipelines),
        notes.source(results),
    ]
    cells = []
    for row in as_rows(pipelines):
        configuration = results.by_name[row["configuration"]]
        label = series.label(configuration, names, several_frameworks=True)
        model = f"{row['model']}, " if several else ""
        name = f"{model}{label} {comparability.sign(configuration)}".rstrip()
        cells.append(_cells(row, name, throughput_text(configuration)))
    return Listing.from_rows(f"Pipelines ({results.heading})", cells, lines)


def capped(pipelines: pd.DataFrame, results: Results) -> pd.DataFrame:
    """The rows of pipelines_table() whose busiest worker keeps every schedule below BALANCED of the ideal. Those of
    more workers than the machine has room for say nothing of a cut, and are left out where there are others."""
    fit = [row["configuration"] for row in results.without_plumbing().rows]
    far: pd.Series[bool] = pipelines.most_speedup.astype(float) < BALANCED * pipelines.stages.astype(float)
    return pipelines[far & pipelines.configuration.isin(fit)]


def unbalanced(held: pd.DataFrame, pipelines: pd.DataFrame) -> list[str]:
    """A loud sentence for each cut among those that are `held` back (capped)."""
    cut = ["model", "framework", "stages", "virtual_stages", "stage_cut", "layers", "busiest_worker"]
    lines = []
    for _, group in held.groupby(cut, sort=False, dropna=False):
        first, caps = group.iloc[0], sorted(group.most_speedup.astype(float))
        last = f"of 0 to {first.stages - 1}"
        who = f"stage {first.busiest_worker} ({last})"
        if first.virtual_stages > 1:
            who = f"worker {first.busiest_worker} ({last}, {first.virtual_stages} stages each)"
        share = " to ".join(dict.fromkeys(f"{100 / cap:.0f}" for cap in (caps[-1], caps[0])))
        most = " to ".join(dict.fromkeys(f"{cap:.2f}" for cap in (caps[0], caps[-1])))
        lines.append(
            f"**{who} does {share} % of the work: the speed-up of any schedule is at most {most}, see F16** "
            f"({first.model}: {comparability.names(group, pipelines)})."
        )
    return lines


def _cells(row: Row, name: str, speed: str) -> dict[str, str]:
    measured = percent(row["bubble"], 1)
    if measured:
        measured += f" ({100 * row['bubble_low']:.1f} to {100 * row['bubble_high']:.1f})"
    keys = ("schedule", "stages", "virtual_stages", "micro_batches", "replicas", "stage_cut", "global_batch")
    names = {"virtual_stages": "virtual stages", "micro_batches": "micro-batches"}
    return {
        "configuration": name,
        **{names.get(key, key.replace("_", " ")): str(row[key]) if known(row[key]) else "" for key in keys},
        "samples/s": speed,
        "bubble measured": measured,
        "theory": percent(row["theory"], 1),
        "replay, equal stages": percent(row["replay_equal"], 1),
        "replay, measured stages": percent(row["replay_measured"], 1),
        "the cut adds": percentage_points(row["added_by_cut"]),
        "transfers and overhead add": percentage_points(row["added_by_transfers"]),
        "computing": f"{row['computing']:.2f}x" if known(row["computing"]) else "",
        "speed-up": f"{row['speedup']:.2f}" if known(row["speedup"]) else "",
        "cap of the cut": f"{row['cap']:.2f} of {row['stages']}" if known(row["cap"]) else "",
        "share of time by stage": percents(parted(row["time_shares"])),
        "share of parameters": percents(parted(row["parameter_shares"])),
        "activations by worker (MB)": " / ".join(megabytes(size) for size in parted(row["activations_bytes"])),
    }


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


def _legend(pipelines: pd.DataFrame) -> Iterator[str]:
    yield (
        "Bubble: the share of workers x makespan without a forward or backward; mean over the instrumented steps "
        "(smallest to largest). Replay: the same order simulated without transfers, with equal stages and with the "
        "measured seconds of each stage. Measured = replay with equal stages + what the cut adds + what transfers and "
        "overhead add, in percentage points."
    )
    formulas = [
        f"{row['schedule']}: {row['theory_formula']}"
        + (f" [none claimed: {row['theory_why']}]" if row["theory_why"] else "")
        for row in as_rows(pipelines.drop_duplicates(["schedule", "theory_formula", "theory_why"]))
    ]
    yield f"Theory, with p workers, v stages each, m micro-batches: {'; '.join(formulas)}."
    yield from notes.holding(
        (
            pipelines.computing.notna().any(),
            "Computing: the seconds that all workers compute for a sample, over those of one process. Above 1, "
            "micro-batches are less efficient than the whole batch, or workers contend (memory, caches, clock). "
            "Speed-up = workers x (1 - bubble) / computing, without the input and the optimiser's step.",
        ),
        (
            pipelines.cap.notna().any(),
            "Cap of the cut: upper bound of this schedule's speed-up with these shares of the time s (gpipe: "
            "m / (1 + (m-1) max s); any schedule: 1 / max s), of the number of workers (F16).",
        ),
        (
            (pipelines.virtual_stages > 1).any(),
            "Activations: by worker, all its stages together; worker 0 first.",
        ),
        (
            (pipelines.schedule == NAIVE).any(),
            "Naive: the whole batch goes from stage to stage, so one worker computes at a time.",
        ),
    )


# The limit of a pipeline's cut. F16: shares of 24, 21, 48 and 6.5 % cap every schedule at 2.08 x. Nobody said so.


def unbalanced_cuts(evidence: Evidence) -> Iterator[Finding]:
    """One for each cut of a model, with the shares and the caps of each configuration that is cut so."""
    pipelines = pipelines_table(evidence.results)
    held = [] if pipelines.empty else as_rows(capped(pipelines, evidence.results))
    for rows in grouped(held, lambda row: tuple(row[key] for key in ("model", "stages", "layers"))).values():
        ours = [evidence.results.by_name[row["configuration"]] for row in rows]
        each = [f"{findings.name_of(own)}: {_caps(row)}" for own, row in zip(ours, rows, strict=True)]
        text = (
            f"{first_few(each, findings.MOST_NAMES)}. Cut it evenly (stage_cut), or state this cap beside the speed-up."
        )
        yield findings.about("F16", "A cut that caps the speed-up", text, DOUBT, ours)


def _caps(row: Row) -> str:
    """`stages take 44 / 56 % of the time, so no schedule on 2 workers is faster than 1.79 x one process, and this one
    no faster than 1.49 x`."""
    own = f", and this one no faster than {row['cap']:.2f} x" if known(row["cap"]) else ""
    return (
        f"stages take {percents(parted(row['time_shares']))} of the time, so no schedule on {row['stages']} workers is "
        f"faster than {row['most_speedup']:.2f} x one process{own}"
    )


# The figure: one step of a pipeline, stage by stage, and the schedules of a model below each other.
#
#     stage 0   F0 F1 F2 F3 ..... B0 B1 B2 B3        boxes: forward, backward (or its two halves), with the number
#     stage 1   .. F0 F1 F2 F3 B0 B1 B2 B3 ..        of the micro-batch; grey: the worker is idle
#
# Where a worker holds several stages, their rows stand together and share its grey.

NAMES = {FORWARD: "forward", BACKWARD: "backward", INPUT: "backward: input", WEIGHT: "backward: weights"}
COLOURS = dict(zip(NAMES, style.style_colours(len(NAMES)), strict=True))
IDLE = "#d9d9d9"
ROW, APART = 0.24, 0.3  # inches of a row; of a row, between two workers
WIDTH = 6.4  # inches of a panel
NUMBER = 6.0  # points
MOST_PANELS = 12  # of one figure
LEAST_BOX = 0.02  # inches, below which an edge would hide the box


@dataclass(frozen=True)
class TimelinePanel:
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


def _panels(results: Results) -> list[TimelinePanel]:
    rows = [row for row in as_rows(pipelines_table(results)) if known(row["bubble"])]
    asked = [results.by_name[row["configuration"]] for row in rows]
    names = [file_name(row) for row in asked]
    cuts, batches = ({row[key] for row in rows} for key in ("stage_cut", "global_batch"))
    panels = []
    for row, ours, name in zip(rows, asked, names, strict=True):
        words = shape_words(ours, cut=len(cuts) > 1) + (f", batch {row['global_batch']}" if len(batches) > 1 else "")
        should = f"theory {100 * row['theory']:.0f} %" if known(row["theory"]) else "no theory"
        step = bubble.median_step(events_of(row, results))
        zero = step.start_seconds.min()
        step = step.assign(start_seconds=step.start_seconds - zero, end_seconds=step.end_seconds - zero)
        unique = name if names.count(name) == 1 else f"{name}-{str(row['configuration']).rpartition('-')[2]}"
        title = f"{words}: bubble {100 * row['bubble']:.0f} % ({should})"
        panels.append(TimelinePanel(title, unique, str(row["model"]), step, row["replicas"]))
    return panels


def _figure(panels: Sequence[TimelinePanel], title: str, results: Results) -> Figure:
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


def _footnote(panels: Sequence[TimelinePanel], shown: Sequence[TimelinePanel], results: Results) -> list[str]:
    return notes.under_figure(
        results,
        "One instrumented step of the first repeat, the median one by makespan; numbers are micro-batches.",
        (len(shown) > 1, "All on one scale of time."),
        (any(panel.replicas > 1 for panel in shown), "Of several replicas, the first."),
        (len(panels) > len(shown), f"The first {len(shown)} of {len(panels)}; each has a figure of its own."),
    )


def _panel(axis: Axes, panel: TimelinePanel, milliseconds: float) -> None:
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
    for event in as_rows(panel.step):
        number = str(event["micro_batch"])
        left, wide = 1000 * event["start_seconds"], 1000 * (event["end_seconds"] - event["start_seconds"])
        kind, middle = event["kind"], places[event["stage"]]
        edge = 0.5 if wide * inch > LEAST_BOX else 0.0
        box = (left, middle - 0.46), wide, 0.92
        axis.add_patch(Rectangle(*box, facecolor=COLOURS[kind], edgecolor="white", linewidth=edge, zorder=3))
        if style.inches(number, NUMBER) + 0.03 < wide * inch:
            axis.text(
                left + wide / 2,
                middle,
                number,
                ha="center",
                va="center_baseline",
                fontsize=NUMBER,
                color="white",
                weight="bold",
                zorder=4,
            )
    axis.set_ylim(panel.rows, 0)
    style.row_names(axis, list(places.values()), _labels(panel))
    style.ticked(axis.xaxis, MaxNLocator(8))
    axis.spines["left"].set_visible(False)


def _labels(panel: TimelinePanel) -> list[str]:
    """`stage 0`, or `worker 0: stage 3` where a worker has several."""
    held = dict(zip(panel.step.stage.astype(int), panel.step.worker.astype(int), strict=True))
    several = len(held) > len(set(held.values()))
    return [f"worker {held[stage]}: stage {stage}" if several else f"stage {stage}" for stage in panel.places()]


VIEW = View(
    "How long do the stages of a pipeline idle?",
    (StudyTable("pipeline", listing, pipelines_table),),
    (Drawing("timeline", draw, several=True, overview="timelines"),),
    (unbalanced_cuts,),
)
