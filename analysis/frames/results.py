"""A study's results in memory: the one way in for tables, figures and reports."""

from __future__ import annotations

import functools
import re
import warnings
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.frames import configurations, details, study, trials
from analysis.frames.configurations import KEYS, UPDATES, has, known, same, trains
from analysis.frames.details import Details
from analysis.frames.rows import ConfigurationRow, as_rows, distinct, grouped
from analysis.frames.study import StudyInfo, workers_text
from analysis.frames.trials import SkippedRecord
from analysis.text import span
from scaling_study.datasets import SCENES
from scaling_study.errors import printable
from scaling_study.frameworks import COMMAND, FRAMEWORKS, LOCAL, POWERSGD
from scaling_study.models import MODELS, NO_MODEL, TEXT_KEYS
from scaling_study.records import maps
from scaling_study.records.maps import COLUMNS, METHODS, SCORED
from scaling_study.records.schema import Record
from scaling_study.records.store import UnreadableRecord
from scaling_study.targets import ENDS
from scaling_study.trial import Trial

ALLREDUCE_ORDER = ("none", "fp32", "bf16", "fp16", "int8", *sorted(POWERSGD, reverse=True))
MAIN_KEYS = ("framework", "workers", "allreduce")
NOT_A_SERIES = (
    "model",
    "batch_per_worker",
    "global_batch",
    "machine",
    "cores_per_worker",
    "oversubscribe",
    "stages",  # what is left of the workers when the replicas are known
)
OF_A_FRAMEWORK = ("launcher", "controller")  # differ between frameworks as such: said only where one has several
OF_ONE_KIND = ("learning_rate", "epochs", "warmup_epochs")  # with train_*: only what is trained, or timed, has them
FILLED_IN = re.compile(r"(?:-\S*[ =])?\S*(?<!\$)\{[a-z0-9_]+\}\S*")  # of a command: `--nproc-per-node {workers}`
WORDS: Mapping[str, Callable[[Any], str]] = {  # how the field says it; any other key: its name and value
    "zero_stage": lambda stage: f"ZeRO-{stage}",
    "accumulation": lambda parts: f"accumulation {parts}" if parts > 1 else "",
    "compile": lambda compiled: "compiled" if compiled else "",
    "compile_scope": lambda scope: "with its loss" if scope == "model_and_loss" else "",
    "optimizer_kernels": lambda kind: f"{kind} update",
    "gelu": lambda form: f"GELU {form}",
    "vocabulary": lambda rows: f"{rows:,} rows of embedding",
    "cross_entropy": lambda kind: f"{kind} cross-entropy",
    "checkpoint": lambda kind: f"{kind} checkpoints",
    "allocator": lambda kind: "" if kind == "fixed" else f"allocator {kind}",
    "padding": lambda kind: f"{kind} padding",
    "sequence_length": lambda tokens: f"{tokens} tokens",
    "input": lambda kind: f"{kind} input",
    "damaged_images": lambda kind: "damaged images replaced" if kind == "replace" else "",
    "image_size": lambda side: f"{side} px",
    "image_width": lambda side: f"{side} px wide",
    "memory_format": str,
    "classes": lambda count: f"{count:,} classes",
    "resident_batches": lambda count: f"{count} resident batches",
    "data": lambda name: f"{name} data",
    "bucket_bytes": lambda size: f"buckets of {size / 2**20:g} MiB",
    "fusion_bytes": lambda size: f"fusion of {size / 2**20:g} MiB",
    "cycle_seconds": lambda seconds: f"cycle of {1000 * seconds:g} ms",
    "target_batch_size": lambda samples: f"target of {samples:,}",
    "matchmaking_seconds": lambda seconds: f"matchmaking of {seconds:g} s",
    "averaging_timeout_seconds": lambda seconds: f"time-out of {seconds:g} s",
    "average_state_every": lambda rounds: f"weights averaged every {rounds} rounds" if rounds > 1 else "",
    "state_allreduce": lambda precision: f"weights averaged in {precision}",
    "daemon_cores": lambda cores: f"{cores} core{'s' * (cores != 1)} for the daemon",
    "updates": lambda how: "" if how == "synchronous" else how,
    "outer": lambda how: LOCAL.get(how, str(how)),
    "sync_every": lambda steps: f"averaged every {steps} steps" if steps > 1 else "averaged every step",
    "learning_rate": lambda rate: f"learning rate {rate:g}",
    "command": str,
    "arguments": str,
    "env": str,
    "schedule": str,
    "micro_batches": lambda count: f"{count} micro-batch{'es' * (count != 1)}",
    "virtual_stages": lambda count: f"{count} stages a worker" if count > 1 else "",
    "replicas": lambda count: f"{count} replicas" if count > 1 else "",
    "tensor_parallel": lambda parts: f"matrices over {parts}" if parts > 1 else "",
    "sequence_parallel": lambda on: "sequence parallel" if on else "",
    "loss_parallel": lambda on: "loss parallel" if on else "",
    "context_parallel": lambda parts: f"sequences over {parts}" if parts > 1 else "",
    "attention": lambda how: f"attention by {how}",
    "buffers": lambda kind: f"{kind} buffers",
    "tuned_for": lambda aim: "" if aim == "speed" else f"tuned for {aim}",
    "wrap": lambda units: "one unit" if units == "none" else "",
    "shard_group": lambda workers: f"shards over {workers}",
    "reduce_scatter": lambda way: f"reduce-scatter by {way}",
    "weights": lambda file: f"weights {file}",
    "freeze": lambda part: f"{part} frozen",
    "part_learning_rates": lambda rates: f"learning rates {rates}",
    "stage_cut": lambda cut: f"cut {cut}",
    "train_loop": lambda whose: "its own loop" if whose == "native" else "",
    "warm": lambda _: "interleaved",
    "allreduce": lambda wire: f"{wire} gradients",
    "precision": lambda kind: f"{kind} compute",
    "batch_per_worker": lambda samples: f"batch {samples}",
    "hosts": lambda count: f"{count} host{'s' * (count != 1)}",
    "workdir": lambda folder: f"in {folder}",
    "cores_per_worker": lambda count: f"{count} core{'s' * (count != 1)} a worker",
    "min_bytes": lambda size: f"from {size} bytes",
    "max_bytes": lambda size: f"up to {size} bytes",
    "size_factor": lambda factor: f"sizes by {factor}",
    "train_epochs": lambda count: f"{count} epoch{'s' * (count != 1)} of training",
    "train_steps": lambda count: f"{count} steps of training",
    "train_max_seconds": lambda seconds: f"at most {seconds:g} s of training",
    "train_target": lambda target: f"to {target}",
    "train_evaluate_every": lambda count: f"evaluated every {count:g} epoch{'s' * (count != 1)}",
    "train_validation": lambda share: f"{100 * share:g} % held out",
    "train_patience": lambda count: f"patience {count}",
    "train_optimizer": str,
    "train_momentum": lambda value: f"momentum {value:g}",
    "train_weight_decay": lambda value: f"weight decay {value:g}",
    "train_clip_norm": lambda norm: f"gradients clipped at {norm:g}",
    "train_label_smoothing": lambda value: f"label smoothing {value:g}",
    "train_schedule": lambda name: f"{name.replace('_', ' ')} learning rate",
    "train_start_learning_rate": lambda rate: f"learning rate from {rate:g}",
    "train_cycle_steps": lambda count: f"cycle of {count} steps",
    "train_warmup_steps": lambda count: f"warm-up of {count} steps",
    "train_scale_learning_rate": lambda rule: f"{rule} scaling of the learning rate",
    "train_reference_batch": lambda count: f"learning rate of batch {count}",
    "train_augmentation": lambda kind: f"{kind.replace('_', ' ')} augmentation",
    "train_log": lambda tools: f"logged to {tools}",
    "train_keep": lambda which: f"{which} weights kept",
    "epochs": lambda count: f"{count} epoch{'s' * (count != 1)}",
    "warmup_epochs": lambda count: f"{count} warm-up epoch{'s' * (count != 1)}",
}


def keys(configurations: pd.DataFrame) -> list[str]:
    """The trial keys that tell series apart: the main ones, and every other that varies in this study."""
    others = [key for key in KEYS if key not in (*MAIN_KEYS, *NOT_A_SERIES)]
    return [*MAIN_KEYS, *(key for key in others if _varies(configurations, key) or _always(configurations, key))]


def _always(configurations: pd.DataFrame, key: str) -> bool:
    """True for `updates` where peers step unlike every other framework, and for `outer`, without which local SGD would
    stand under the name of DiLoCo: labels then name it even if all agree."""
    if key == "outer":
        return bool(configurations[key].notna().any())
    return key == "updates" and bool(configurations[key].isin(list(UPDATES)).any())


def _varies(configurations: pd.DataFrame, key: str) -> bool:
    """Within a model, as images have no tokens; among the frameworks that have the key at all; and of what only one
    kind has, trained to a result or timed, within that kind. A seed only where nothing else tells two apart: of
    trainings it is the first of their repeats."""
    if len(distinct(configurations[key])) < 2:  # most keys of most studies, without a groupby
        return False
    if key == "seed":
        return bool(configurations.duplicated([name for name in KEYS if name != key]).any())
    if key in OF_A_FRAMEWORK:
        return bool((configurations.groupby(["model", "framework"])[key].nunique(dropna=False) > 1).any())
    having = [name for name in configurations.framework.unique() if has(str(name), key)]
    rows = configurations[configurations.framework.isin(having)]
    kinds = [_trained(rows)] if key in OF_ONE_KIND or key.startswith("train_") else []
    return bool((rows.groupby([rows.model, *kinds])[key].nunique(dropna=False) > 1).any())


def _trained(configurations: pd.DataFrame) -> pd.Series[bool]:
    return configurations[list(ENDS)].notna().any(axis=1)


def add(configurations: pd.DataFrame, study: StudyInfo) -> pd.DataFrame:
    """With columns `series` (a short label), `series_order` (0, 1, ... in the order to show them) and `batch`."""
    names = keys(configurations)
    several = configurations.framework.nunique() > 1
    commands = _told_apart(text for text in configurations.command if known(text))
    rows = [{**row, "command": commands.get(str(row["command"]))} for row in as_rows(configurations)]
    labels = [label(row, names, several) for row in rows]
    timed = {(row["model"], text) for row, text in zip(rows, labels, strict=True) if not trains(row)}
    labels = [
        text + _kind(row) if trains(row) and (row["model"], text) in timed else text
        for row, text in zip(rows, labels, strict=True)
    ]
    places: dict[str, tuple[Hashable, ...]] = {}
    for row, text in zip(rows, labels, strict=True):
        places.setdefault(text, _place(row, names, study))
    order = {text: index for index, text in enumerate(sorted(places, key=lambda text: places[text]))}
    return configurations.assign(
        series=pd.Series(labels, index=configurations.index, dtype="object"),
        series_order=pd.Series([order[text] for text in labels], index=configurations.index, dtype="int64"),
        batch=configurations[study.batch_key],
    )


RUN_TO_TARGET, FULL_TRAINING = ", run to target", ", full training"


def _kind(row: Mapping[Any, Any]) -> str:
    """Ends the label of a training where a timed run has the same one."""
    return RUN_TO_TARGET if known(row["train_target"]) else FULL_TRAINING


def without_kind(text: str) -> str:
    """A label that stands where there are trainings only."""
    return text.removesuffix(RUN_TO_TARGET).removesuffix(FULL_TRAINING)


def _told_apart(commands: Iterable[str]) -> dict[str, str]:
    """Each command of a user's own -> its words that not all of them have, without options whose values other words of
    the label say; all words where two would be alike."""
    split = {text: FILLED_IN.sub("", text).split() for text in commands}
    shared = set.intersection(*map(set, split.values())) if split else set()
    short = {text: " ".join(word for word in words if word not in shared) for text, words in split.items()}
    return short if len({*short.values()}) == len(short) else {text: text for text in split}


def label(row: Mapping[Any, Any], names: Sequence[str], several_frameworks: bool) -> str:
    """`torch_fsdp2, 2 workers, fp16, ZeRO-3`; `2 workers, fp16` in a study of one framework."""
    return ", ".join(filter(None, parts(row, names, several_frameworks).values()))


def parts(row: Mapping[Any, Any], names: Sequence[str], several_frameworks: bool) -> dict[str, str]:
    """Key -> its words in a label, in their order; empty where it has none, without keys that do not apply."""
    table = FRAMEWORKS.get(row["framework"])
    only_one = table is not None and table.axes.get("workers") == (1,)
    wire = on_wire(row)
    said = {"framework": str(row["framework"])} if several_frameworks or only_one else {}
    said |= {} if only_one else {"workers": workers_text(int(row["workers"]))}
    said |= {"allreduce": f"{wire} gradients" if "precision" in names else wire} if wire else {}
    said |= {name: " ".join(words(row, [name])) for name in names if name not in MAIN_KEYS and known(row[name])}
    return said | ({"oversubscribe": "oversubscribed"} if row["oversubscribed"] else {})


def on_wire(row: Mapping[Any, Any]) -> str:
    """`fp16`, `powersgd1`: what gradients travel as. Empty with one worker, and of a command whose study leaves the key
    at its default: nobody has seen it."""
    unseen = row["framework"] == COMMAND and row["allreduce"] == Trial.allreduce
    return str(row["allreduce"]) if known(row["allreduce"]) and row["allreduce"] != "none" and not unseen else ""


def carried(allreduce: object) -> str:
    """`in fp16`, `by PowerSGD of rank 2`: how gradients travel, in words."""
    rank = POWERSGD.get(str(allreduce))
    return f"in {allreduce}" if rank is None else f"by PowerSGD of rank {rank}"


def words(row: Mapping[Any, Any], names: Iterable[str]) -> list[str]:
    """`["ZeRO-3", "128 tokens"]`: what these keys say of a row, without those that do not apply to it."""
    given = ((name, row[name]) for name in names if known(row[name]))
    return [text for name, value in given if (text := WORDS[name](value) if name in WORDS else f"{name} {value}")]


def _place(row: Mapping[Hashable, Any], names: Sequence[str], study: StudyInfo) -> tuple[Hashable, ...]:
    """Sorts the baseline's framework first, then by framework, workers and allreduce precision."""
    first = (study.baseline or {}).get("framework")
    allreduce = ALLREDUCE_ORDER.index(row["allreduce"]) if row["allreduce"] in ALLREDUCE_ORDER else 99
    others = (row[name] for name in names if name not in MAIN_KEYS)
    extra = tuple(str(int(v) if isinstance(v, bool) else v).rjust(20) for v in others)  # 2 before 10, plain before not
    return (not same(row["framework"], first), str(row["framework"]), int(row["workers"]), allreduce, *extra)


OF_VIDEOS = ("trial", "configuration", "repeat", "seed", "video", "method", "maps", *SCORED)


@dataclass(frozen=True)
class About:
    """The configuration, checkpoint and frames that a trial's maps are of."""

    configuration: str
    seed: int
    step: int
    metric: str  # by which that step was the best, and its value on validation data
    value: float
    source: str
    frames: int
    threshold: float  # of a probability, from which on an instrument counts as recognised
    instruments: tuple[str, ...]
    shown: Mapping[str, str]  # whose "channels", which "class"


@dataclass(frozen=True)
class Maps:
    """Saliency maps of all trials that have some. `videos`: OF_VIDEOS, means over the maps of a video. `rows`: trial ->
    its whole scores, (rows, records.maps.COLUMNS)."""

    videos: pd.DataFrame = field(default_factory=lambda: pd.DataFrame(columns=list(OF_VIDEOS)))
    about: Mapping[str, About] = field(default_factory=dict)  # by trial
    rows: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    folders: Mapping[str, Path] = field(default_factory=dict)

    def pictures(self, trial: str) -> dict[str, NDArray[Any]]:
        """Arrays of records.maps.ARRAYS, and the frames. Raises UnreadableRecord."""
        return _pictures(self.folders[trial])


def read_maps(results: Path, runs: pd.DataFrame) -> Maps:
    """Read the maps of the trials in `runs` (columns.TRIALS). Warns SkippedRecord of those that cannot be read."""
    frames, about, rows, folders = [], dict[str, About](), dict[str, NDArray[np.float64]](), dict[str, Path]()
    having = {path.parent.parent.name for path in (results / "trials").glob(f"*/{maps.FOLDER}/{maps.ABOUT}")}
    for row in as_rows(runs[["trial", "configuration", "repeat", "seed"]][runs.trial.isin(having)]):
        trial, folder = str(row["trial"]), results / "trials" / str(row["trial"])
        try:
            described = _about(folder, str(row["configuration"]), int(row["seed"]))
            scores = maps.read_scores(folder)
        except UnreadableRecord as error:
            warnings.warn(f"skipped: {error}", SkippedRecord, stacklevel=2)
            continue
        about[trial], rows[trial], folders[trial] = described, scores, folder
        frames.append(_of_videos(scores).assign(**row))
    if not frames:
        return Maps()
    return Maps(pd.concat(frames, ignore_index=True)[list(OF_VIDEOS)], about, rows, folders)


def _of_videos(scores: NDArray[np.float64]) -> pd.DataFrame:
    """A row for each video and method."""
    whole = pd.DataFrame(scores, columns=list(COLUMNS)).astype({"video": int})
    means_of = [
        (video, method, len(ours), *(float(ours[f"{method}_{score}"].mean()) for score in SCORED))
        for video, ours in whole.groupby("video")
        for method in METHODS
    ]
    return pd.DataFrame(means_of, columns=["video", "method", "maps", *SCORED])


def _about(folder: Path, configuration: str, seed: int) -> About:
    described = maps.read_about(folder) or {}
    try:
        return About(
            configuration,
            seed,
            int(described["step"]),
            printable(described["metric"]),
            float(described["value"]),
            printable(described["source"]),
            int(described["frames"]),
            float(described["threshold"]),
            tuple(printable(name) for name in described["instruments"]),
            {printable(key): printable(value) for key, value in described["shown"].items()},
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UnreadableRecord(f"{folder / maps.FOLDER / maps.ABOUT} is not whole: {error}") from error


@lru_cache(maxsize=8)
def _pictures(folder: Path) -> dict[str, NDArray[Any]]:
    return maps.read_panels(folder)


P = ParamSpec("P")
T = TypeVar("T")


def once(derive: Callable[Concatenate[Results, P], T]) -> Callable[Concatenate[Results, P], T]:
    """Cache `derive` for each Results, as long as that lives. The other arguments must be hashable. Callers share the
    value, so nobody writes to it."""

    @functools.wraps(derive)
    def derived(results: Results, *args: P.args, **kwargs: P.kwargs) -> T:
        known, asked = vars(results).setdefault("derived", {}), (derive, args, tuple(kwargs.items()))
        if asked not in known:
            known[asked] = derive(results, *args, **kwargs)
        value: T = known[asked]
        return value

    return derived  # type: ignore[return-value]  # results is given by its place


@dataclass(frozen=True)
class Results:
    """One study. `trials` has columns.TRIALS; `configurations` has columns.of_configurations and columns.SHOWN.

    Parity gates and network probes are among the trials and have no configuration.
    """

    study: StudyInfo
    trials: pd.DataFrame
    configurations: pd.DataFrame
    older: int = 0  # configurations with records that are not in the study as it is now
    details: Details = field(default_factory=details.gathered)  # what the records hold beside the trials' columns
    skipped: tuple[str, ...] = ()  # a line for each record that could not be read
    maps: Maps = field(default_factory=Maps)  # that lie beside the records
    references: Path | None = None  # a file of published figures, of the user's own (analysis.published.references)

    @cached_property
    def unseen(self) -> tuple[str, ...]:
        """The configurations that the study plans, and of which no record was read."""
        read = set(self.trials.configuration)
        return tuple(name for name in self.study.configurations or () if name not in read)

    @cached_property
    def rows(self) -> list[ConfigurationRow]:
        """`configurations`, a mapping each: made once, as taking a frame apart costs more than most of what is asked of
        it. Not to be written to."""
        return as_rows(self.configurations)

    @cached_property
    def by_name(self) -> dict[str, ConfigurationRow]:
        """Configuration -> its row. Not to be written to."""
        return {row["configuration"]: row for row in self.rows}

    def among(self, names: Iterable[str]) -> pd.DataFrame:
        """The `configurations` of these names."""
        return self.configurations[self.configurations.configuration.isin(list(names))]

    @cached_property
    def series_keys(self) -> list[str]:
        """The trial keys that tell series apart."""
        return keys(self.configurations)

    @cached_property
    def _short(self) -> tuple[dict[str, str], list[str]]:
        names = {str(row["series"]): str(row["series"]) for row in self.rows}
        if any(row["framework"] == COMMAND for row in self.rows):  # whose words are not told apart by keys
            return names, []
        several, left, said = self.configurations.framework.nunique() > 1, dict[str, dict[str, str]](), list[str]()
        for row in self.rows:
            own = parts(row, self.series_keys, several)
            rest = str(row["series"]).removeprefix(", ".join(filter(None, own.values()))).removeprefix(", ")
            left[str(row["series"])] = own | {"": rest}
        for key in ("workers", "allreduce"):  # any other key is in a label only if it varies
            texts = {own[key] for own in left.values() if key in own}
            without = {name: own | {key: ""} for name, own in left.items()}
            shorter = {name: ", ".join(filter(None, own.values())) for name, own in without.items()}
            if len(texts) == 1 and "" not in texts and all(shorter.values()) and len({*shorter.values()}) == len(names):
                left, names = without, shorter
                said += texts
        return names, said

    @property
    def named(self) -> dict[str, str]:
        """Series -> those of its words that vary in this study."""
        return self._short[0]

    @cached_property
    def constants(self) -> list[str]:
        """What all configurations have in common: `fp32 compute`, `2 workers`, `fp32 gradients`, `batch 32`."""
        rows = [row for row in self.rows if row["framework"] != COMMAND]
        wires = {on_wire(row) for row in rows} - {""}
        said = [text for text in self._short[1] if text.removesuffix(" gradients") not in wires]
        said = [f"{rows[0]['precision']} compute", *said] if len({row["precision"] for row in rows}) == 1 else said
        said += [f"{wire} gradients" for wire in wires] if len(wires) == 1 else []
        batches = {row["batch"] for row in rows}
        which = self.study.batch_key.replace("_", " ")
        if len(batches) > 1:
            which = which.replace("batch", "batches")
            return said + [which] * any(not same(row["batch_per_worker"], row["global_batch"]) for row in rows)
        return said + [f"{which} {batch}" for batch in batches]

    @cached_property
    def _by_model(self) -> dict[str, list[ConfigurationRow]]:
        return grouped(self.rows, lambda row: str(row["model"]))

    def rows_of(self, model: str) -> list[ConfigurationRow]:
        """Those of one model."""
        return self._by_model.get(model, [])

    @cached_property
    def _frames(self) -> dict[str, pd.DataFrame]:
        return {str(model): ours for model, ours in self.configurations.groupby("model", sort=False)}

    def frame_of(self, model: str) -> pd.DataFrame:
        """`configurations` of one model. Not to be written to."""
        return self._frames.get(model, self.configurations.iloc[:0])

    @cached_property
    def runs(self) -> pd.DataFrame:
        """The trials that are neither gates nor probes: those that trained in order to be measured."""
        return self.trials[~gates_of(self.trials) & ~probes_of(self.trials)]

    @cached_property
    def probes(self) -> pd.DataFrame:
        """The trials that measured the network, of the study as it is now."""
        known, ours = self.study.configurations, self.trials[probes_of(self.trials)]
        return ours if known is None else ours[ours.configuration.isin(known)]

    @cached_property
    def gates(self) -> pd.DataFrame:
        """The trials that are parity gates."""
        return self.trials[gates_of(self.trials)]

    @property
    def nothing_yet(self) -> str:
        """The message where there is nothing to draw; empty if there is something."""
        if len(self.configurations):
            return ""
        done = f": {len(self.gates)} parity checks, nothing to draw yet" if len(self.gates) else ""
        if self.skipped and self.trials.empty:
            return f"none could be read of {len(self.skipped)} record{'s' * (len(self.skipped) != 1)}"
        return f"no finished trial yet{done}" if self.probes.empty else ""

    @cached_property
    def models(self) -> list[str]:
        """In the order of their names, numbers as numbers: resnet8 before resnet18."""
        return sorted(
            (str(model) for model in self.configurations.model.dropna().unique()),
            key=lambda name: [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)],
        )

    @cached_property
    def synthetic(self) -> bool:
        """True where any configuration trained on generated data: then every title and footnote says so."""
        c = self.configurations
        source = c.data_source.fillna("").str.contains("synthetic") | c.data.isin(("synthetic", SCENES))
        return bool(source.any())

    @cached_property
    def whole(self) -> bool:
        """True where each configuration of the study as it is now has every repeat planned before any was seen.
        False where that is not known, as of older results."""
        if self.study.configurations is None or self.unseen:
            return False
        by_name = self.runs[self.runs.configuration.isin(self.study.configurations)].groupby("configuration")
        return bool((by_name.size() >= by_name.planned_repeats.max()).fillna(False).all())

    @property
    def marks(self) -> list[str]:
        """Warnings in capitals that every table, figure and page carries."""
        by = {"": "", "SIGINT": "BY HAND"}.get(self.study.stopped, f"BY {self.study.stopped}")
        return ["SYNTHETIC DATA"] * self.synthetic + [f"STOPPED {by}"] * bool(by and not self.whole)

    def without_plumbing(self) -> Results:
        """The same without configurations of more workers than the machine has room for, whose speed says nothing; all
        of it where there are no others."""
        comparable = ~self.configurations.oversubscribed.fillna(False).astype(bool)
        if comparable.all() or not comparable.any():
            return self
        return replace(self, configurations=self.configurations[comparable].reset_index(drop=True))

    @property
    def heading(self) -> str:
        """The study's name, as a table's title ends with it."""
        return ", ".join([self.study.name, *self.marks])

    @cached_property
    def dates(self) -> str:
        """`2026-01-31`, or the first and last day of the study's trials (UTC); empty if none was started."""
        days = sorted({str(started)[:10] for started in self.trials.started_at.dropna() if started})
        return span(days[0], days[-1]) if days else ""

    @property
    def repeats(self) -> str:
        """`1 repeat`, `2 to 3 repeats`, `6 launches`: how many the measured configurations have."""
        counts = sorted(set(self.configurations.n[self.configurations.n > 0])) or [0]
        return self.counted(span(str(counts[0]), str(counts[-1])))

    @cached_property
    def repeats_word(self) -> str:
        """`launches` where configurations are interleaved in these, else `repeats`."""
        shared = any(configurations.launches_names(row) for row in self.rows if row["n"])
        return "launches" if shared else "repeats"

    def counted(self, number: object) -> str:
        """`6 launches`, `1 repeat`."""
        one = {"launches": "launch", "repeats": "repeat"}[self.repeats_word]
        return f"{number} {one if str(number) == '1' else self.repeats_word}"


def probes_of(rows: pd.DataFrame) -> pd.Series[bool]:
    """True for rows of trials that trained nothing, but measured the network."""
    return (rows.model == NO_MODEL).fillna(False).astype(bool)


def gates_of(rows: pd.DataFrame) -> pd.Series[bool]:
    """True for rows of trials that are parity gates."""
    return (rows["find"] == trials.GATE).fillna(False).astype(bool)


def read(folder: Path, collect: Callable[[Record], None] | None = None) -> Results:
    """Raises study.NotResults for a folder that is none; warns trials.SkippedRecord of unreadable records.

    `collect`: takes what else is needed of the records, which are read once for both.
    """
    about = study.read(folder)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", trials.SkippedRecord)
        rows, beside = trials.read(folder, collect)
        shown_maps = read_maps(folder, rows)
    for warning in caught:
        warnings.warn(warning.message, stacklevel=3)
    skipped = dict.fromkeys(
        str(warning.message) for warning in caught if issubclass(warning.category, trials.SkippedRecord)
    )
    runs = rows["find"].isna() & ~probes_of(rows)  # the others looked for something else: they are in results.csv
    known = None if about.configurations is None else [*about.configurations, *about.alone]
    current = runs if known is None else runs & rows.configuration.isin(known)
    older = rows.configuration[runs].nunique() - rows.configuration[current].nunique()
    shown = add(configurations.summarise(rows[current], about), about)
    return Results(about, rows, shown, older, beside, tuple(skipped), shown_maps)


def unit(rows: pd.DataFrame) -> str:
    """The word for samples of these rows: `samples`; of text with counted tokens, `sentences` or `sequences`."""
    if rows.tokens_per_second.isna().all():
        return "samples"
    running = (name in MODELS and not set(TEXT_KEYS) <= set(MODELS[name].keys) for name in rows.model)
    return "sequences" if any(running) else "sentences"
