"""Trials -> one row a configuration: configurations.csv. Throughput over its repeats, speed-up, efficiency.

Every interval here is 95 %, between repeats: Student t for a throughput, Welch on the logarithm for a speed-up, which
is taken within launches where both shared them. With fewer than 3 repeats that are ok the number stands alone.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import islice
from typing import Any, NamedTuple, TypeGuard, TypeVar

import pandas as pd

from analysis.frames import columns
from analysis.frames.rows import ConfigurationRow, as_rows, grouped, typed
from analysis.frames.study import StudyInfo
from analysis.frames.trials import NO_GATE, NOT_CHECKED, PASSED
from analysis.text import first_few
from scaling_study.frameworks import COMMAND, FRAMEWORKS, LOCAL
from scaling_study.records import schema
from scaling_study.records.schema import STATUSES
from scaling_study.stats import launches
from scaling_study.stats.intervals import (
    FEWEST_REPEATS,
    TOO_SHORT,
    Interval,
    between_repeats,
    ratio,
    repeats_needed,
    student_t,
)
from scaling_study.stats.launches import LaunchSpread
from scaling_study.study import defaults
from scaling_study.study.groups import ALIKE, apart
from scaling_study.targets import ENDS

# The word for what came of a configuration. `oom` was measured, `oom (implied)` was not run: a smaller batch was.

IMPLIED = "oom (implied)"


def word(row: ConfigurationRow) -> str:
    """The status of a trial or a configuration; IMPLIED where it follows from a smaller batch out of memory."""
    return IMPLIED if implied(row) else str(row["status"])


def implied(row: ConfigurationRow) -> bool:
    return schema.implied(str(row["status"]), str(row["reason"]) if known(row["reason"]) else "")


def words(rows: pd.DataFrame) -> pd.Series[str]:
    """`word` of each row."""
    return pd.Series([word(row) for row in as_rows(rows[["status", "reason"]])], index=rows.index, dtype="string")


# Which configuration another one's speed-up is measured against.
#
# The baseline adds no trials: it is looked for among the study's own. It matches the study's `baseline` and equals
# the compared configuration in every key, except those that say how the work is spread over workers. Under weak
# scaling and in data parallelism that leaves the same batch_per_worker; under strong scaling, and in a pipeline,
# whose workers share one batch, the same global_batch.
#
# A variant of a model (models.py: `like`) is another model, and has no baseline in its original. Only the table of
# epochs sets the two beside each other, because people do, and says what is wrong with it: find(..., model=original).

KEYS = tuple(key.name for key in columns.TRIAL_KEYS if key.name != "repeat")
PIPELINE_KEYS = ("schedule", "stages", "virtual_stages", "micro_batches", "replicas", "stage_cut")
MESH_KEYS = (
    *("tensor_parallel", "sequence_parallel", "loss_parallel", "context_parallel", "attention"),
    *("shard_group", "reduce_scatter", "sync_every", "outer"),
)
# The order matters where several configurations match: the one nearest to the compared one is taken.
SPREADING_KEYS = (
    "framework",
    *("command", "arguments", "env", "workdir"),  # of commands of a user's own, which are compared with each other
    *("launcher", "controller", "allreduce", "hosts", "schedule", "workers"),
    *(key for key in PIPELINE_KEYS if key != "schedule"),
    *("zero_stage", "bucket_bytes", "fusion_bytes", "cycle_seconds", "buffers", "tuned_for"),
    *(*MESH_KEYS, "wrap"),
    *("target_batch_size", "matchmaking_seconds", "averaging_timeout_seconds", "average_state_every"),
    *("state_allreduce", "daemon_cores", "updates", "train_loop"),
)
FOR_ALL = ("machine", "warm")  # keys that are no axes of frameworks
BATCH_KEYS = ("batch_per_worker", "global_batch")
DECIDING_KEYS = tuple(key for key in KEYS if key not in (*SPREADING_KEYS, *BATCH_KEYS))
T = TypeVar("T")
Row = TypeVar("Row", bound=Mapping[str, Any])
Configuration = Mapping[str, Any]  # the trial keys of one configuration, and `configuration`, its id


def find(
    compared: Row,
    among: Sequence[Row],
    study: StudyInfo,
    *,
    model: str | None = None,
    batch: str | None = None,
) -> Row | str:
    """The baseline of `compared`, itself if it is one; or, in one clause, why there is none.

    `model`: look among those of this model instead. `batch`: hold this one of BATCH_KEYS equal, and no other. A command
    of a user has a baseline of any batch where the study names that batch, as bench does: see `unlike`.
    """
    if study.baseline is None:
        return "the study declares no baseline"
    if _is_baseline(compared, study.baseline) and model is None:
        return compared
    batch = batch or _batch_key(compared, study)
    like: Configuration = compared if model is None else {**compared, "model": model}
    if compared.get("framework") == COMMAND and batch in study.baseline:
        like = {**like, batch: study.baseline[batch]}
    matching = [c for c in among if _comparable(c, like, batch) and _is_baseline(c, study.baseline)]
    if not matching:
        return _why_none(like, [c for c in among if _is_baseline(c, study.baseline)], batch, study.baseline)
    ranked = sorted(matching, key=lambda c: _nearness(c, like), reverse=True)
    if len(ranked) > 1 and _nearness(ranked[0], like) == _nearness(ranked[1], like):
        return f"{len(ranked)} configurations match the baseline: {', '.join(str(c['configuration']) for c in ranked)}"
    return ranked[0]


def _why_none(like: Configuration, bases: Sequence[Configuration], batch: str, partial: Mapping[str, Any]) -> str:
    """Names the keys in which the nearest of these baselines, none of which is comparable, differs from `like`."""
    wanted = ", ".join(f"{k}={v}" for k, v in partial.items())
    near = [c for c in bases if same(c.get(batch), like.get(batch)) and same(c.get("model"), like.get("model"))]
    if near and all(trains(c) != trains(like) for c in near):
        done = ("was only timed, and this was trained", "was trained, and this was only timed")
        return f"{wanted} with the same {batch} {done[not trains(like)]}"
    differing = (
        {key: c.get(key) for key in _deciding(str(c.get("framework")), str(like.get("framework")))} for c in near
    )
    unlike = ({key: it for key, it in of.items() if not same(it, like.get(key))} for of in differing)
    nearest = min(unlike, key=len, default={})
    keys = [f"{key} ({_value(it)}, here {_value(like.get(key))})" for key, it in nearest.items()]
    said = f"; the nearest differs in {first_few(keys, MOST_NAMES)}" if keys else ""
    where = f"the same {batch}" if near else f"{batch}={like.get(batch)}"
    return f"no baseline trial with {wanted} and {where} that is otherwise the same was run{said}"


def _value(value: object) -> str:
    return str(value) if known(value) else "none"


def trains(configuration: Mapping[Any, Any]) -> bool:
    """True of one that is trained to a result, and not only timed."""
    return any(known(configuration.get(key)) for key in ENDS)


def batch_words(row: Mapping[Any, Any]) -> str:
    """`batch 64`; where a worker's batch is not the global one `batch 32 per worker (64 global)`, or, if the study
    compares equal global batches, `global batch 64`. `row`: of results.Results."""
    own, whole = row["batch_per_worker"], row["global_batch"]
    if same(own, whole):
        return f"batch {whole}"
    return f"global batch {whole}" if row["batch"] == whole else f"batch {own} per worker ({whole} global)"


def usual_batch(rows: Iterable[Mapping[Any, Any]]) -> int:
    """The batch size that most of these have, the largest of several; 0 of none."""
    counts = Counter(int(row["batch"]) for row in rows)
    return max(counts, key=lambda batch: (counts[batch], batch), default=0)


def told_by_batch(rows: Sequence[Mapping[Any, Any]]) -> list[str]:
    """Series and batch_words of each; the study's batch alone, `batch 32`, where all have the same."""
    if len({row["batch"] for row in rows}) > 1:
        return [f"{row['series']}, {batch_words(row)}" for row in rows]
    return [f"{row['series']}, batch {row['batch']}" for row in rows]


def candidates(among: Iterable[Row], study: StudyInfo) -> dict[str, list[Row]]:
    """Model -> those of it that can be a baseline: all that find() need look at."""
    able = (c for c in among if study.baseline is not None and _is_baseline(c, study.baseline))
    return grouped(able, lambda c: str(c.get("model")))


def _is_baseline(configuration: Configuration, partial: Mapping[str, Any]) -> bool:
    return all(same(configuration.get(key), value) for key, value in partial.items())


def is_pipeline(configuration: Mapping[Any, Any]) -> bool:
    """True where the workers share one batch. Plain data parallelism has none of the keys."""
    return any(known(configuration.get(key)) for key in PIPELINE_KEYS)


def _batch_key(configuration: Configuration, study: StudyInfo) -> str:
    return "global_batch" if is_pipeline(configuration) else study.batch_key


def _comparable(a: Configuration, b: Configuration, batch: str) -> bool:
    """Equal in all that decides what is computed. A key that one framework does not have cannot differ."""
    if not (same(a.get(batch), b.get(batch)) and same(a.get("model"), b.get("model"))):  # most are told apart by these
        return False
    shared = _deciding(str(a.get("framework")), str(b.get("framework")))
    return all(same(a.get(key), b.get(key)) for key in shared)


@cache
def _deciding(*frameworks: str) -> list[str]:
    """Those of DECIDING_KEYS that all of these have, or that follow the device: what cannot be compiled is not held
    against what was. What a command of a user's own does is not known."""
    ours = not any(FRAMEWORKS[name].foreign for name in frameworks if name in FRAMEWORKS)
    following = defaults.KEYS if ours else ()
    return [key for key in DECIDING_KEYS if key in following or all(has(name, key) for name in frameworks)]


def has(framework: str, key: str) -> bool:
    """True where the framework has `key`: each has FOR_ALL, and one that is not in the table has every key."""
    table = FRAMEWORKS.get(framework)
    return table is None or key in FOR_ALL or key in table.axes


def _nearness(candidate: Configuration, compared: Configuration) -> tuple[bool, ...]:
    return tuple(same(candidate.get(key), compared.get(key)) for key in SPREADING_KEYS)


def known(value: T | None) -> TypeGuard[T]:
    """False for None and for what pandas makes of it."""
    return value is not None and not pd.isna(value)  # type: ignore[call-overload]


def values_of(row: Mapping[Any, Any], keys: Iterable[str]) -> tuple[Any, ...]:
    """Equal for two rows where `same` holds of each of these keys: to look one up among thousands."""
    return tuple(value if known(value := row[key]) else None for key in keys)


def same(a: Any, b: Any) -> bool:
    """Equality in which unknown equals unknown."""
    if type(a) is str and type(b) is str:  # most are, and this is asked a million times of a large study
        return a == b
    return bool(a == b) if known(a) and known(b) else known(a) == known(b)


# Configurations whose speed may not be compared: their signs, and the sentences that name them.
#
# †  failed parity: it trains something else, so its speed answers another question
# ‡  runs here in a way that holds it back (frameworks.py: not_comparable_on_cpu): its parity and memory still count
# §  workers that step otherwise than DDP does (`updates`: delayed, local; `outer`): another algorithm, whose speed is
#    its own: what it brings shows in seconds to a target

FAILED_SIGN, HERE_SIGN, UPDATES_SIGN = SIGNS = ("†", "‡", "§")
FAULTY = "NOT COMPARABLE: parity failed"
OTHERWISE = "not comparable with synchronous training"
UPDATES = {  # of peers: what each does instead
    "delayed": "a peer steps by the gradients of the round before, while it computes those of the next",
    "local": "a peer steps by its own gradients after each batch, and weights are averaged in place of gradients",
}
MOST_NAMES = 4


def why_not(row: Mapping[Any, Any]) -> str:
    """Why the speed of a configuration is not to be compared; empty if it may be. `row` has its keys and `parity`."""
    if failed(row):
        return f"{FAULTY}: {' '.join(str(row['parity']).split())}"
    if own := own_algorithm(row):
        return f"{OTHERWISE}: {UPDATES[own]} (updates={own}; its parity check is one of synchronous rounds)"
    if (name := LOCAL.get(str(row.get("outer")))) and row["workers"] > 1:
        alone = f"step by their own gradients and average weights every {row['sync_every']} steps"
        return f"{OTHERWISE}: {name}, whose workers {alone}"
    table = FRAMEWORKS.get(str(row["framework"]))
    here = table.not_comparable_on_cpu if table is not None and row["device"] == "cpu" else ""
    return f"speed not comparable: {here}" if here else ""


def own_algorithm(row: Mapping[Any, Any]) -> str:
    """`delayed` or `local` of peers that step so: set beside nothing but their like. Empty of all others."""
    how = str(row.get("updates"))
    return how if how in UPDATES else ""


def failed(row: Mapping[Any, Any]) -> bool:
    """True where the configuration failed parity."""
    return known(row["parity"]) and row["parity"] not in (PASSED, NOT_CHECKED, NO_GATE)


def sign(row: ConfigurationRow) -> str:
    """One of SIGNS, shown beside the numbers and the name of a configuration; empty where it may be compared."""
    if not row["not_comparable"]:
        return ""
    return FAILED_SIGN if failed(row) else UPDATES_SIGN if row["not_comparable"].startswith(OTHERWISE) else HERE_SIGN


def trains_alike(row: ConfigurationRow) -> bool:
    """True where what its training took may be set beside others': not of what failed parity, is held back by this
    machine or oversubscribed. Another algorithm may be: what it brings shows in seconds to a target."""
    return not row["oversubscribed"] and sign(row) in ("", UPDATES_SIGN)


def sign_of_work(row: ConfigurationRow) -> str:
    """The sign beside bytes: FAILED_SIGN, else empty. Bytes count at any speed, unless something else is trained."""
    return FAILED_SIGN if sign(row) == FAILED_SIGN else ""


def sentences(rows: pd.DataFrame, signs: Sequence[str] = SIGNS) -> list[str]:
    """One line for each reason: `† NOT COMPARABLE: parity failed: loss of every step: ... (deepspeed_zero).`"""
    marked = rows[["framework", "series", "not_comparable", "parity"]][rows.not_comparable.fillna("") != ""]
    marked = marked.assign(sign=list(map(sign, as_rows(marked))))
    lines = []
    for (why, at), group in marked.groupby(["not_comparable", "sign"], sort=False):
        if str(at) in signs:
            lines.append(f"{at} {why} ({names(group, rows)}).")
    return lines


def names(group: pd.DataFrame, rows: pd.DataFrame) -> str:
    """A framework by its name where all of its rows are in the group, else series by series."""
    names = []
    for framework, ours in group.groupby("framework", sort=False):
        whole = len(ours) == (rows.framework == framework).sum()
        names += [str(framework)] if whole else [str(name) for name in ours.series.unique()]
    return first_few(names, MOST_NAMES)


UNKNOWN_OF_COMMANDS = (
    "Commands of your own: which data they read, and the precision of gradients on the wire where the study does not "
    "say it, are not known; no parity check can run before them."
)


def checked(rows: pd.DataFrame) -> list[str]:
    """At most three short lines about parity, of the measured rows that did not fail it."""
    measured = rows[["framework", "series", "parity", "parity_gates"]][(rows.n > 0) & (rows.framework != COMMAND)]
    good, unknown = measured[measured.parity == PASSED], measured[measured.parity == NOT_CHECKED]
    count = len({gate for gates in good.parity_gates for gate in str(gates).split(";")})
    others = names(good, measured) if len(unknown) else "all others"
    who = "all frameworks" if len(good) == len(measured) else others
    whose = "" if len(unknown) == len(measured) else f": {names(unknown, measured)}"
    lines = (
        (UNKNOWN_OF_COMMANDS, (rows.framework[rows.n > 0] == COMMAND).any()),
        (f"Parity: {who} passed ({count} check{'s' * (count != 1)}).", len(good)),
        (f"Parity: not checked{whose}.", len(unknown)),
    )
    return [line for line, holds in lines if holds]


def unlike_work(row: Mapping[Any, Any], base: Mapping[Any, Any]) -> bool:
    """True where the two share neither the batch of a worker nor the global batch: a ratio of their speeds is no
    scaling."""
    return all(known(row[batch]) and known(base[batch]) and row[batch] != base[batch] for batch in BATCH_KEYS)


def unlike(rows: pd.DataFrame) -> list[str]:
    """A line where commands of a user are held against a baseline of another batch."""
    held = as_rows(rows[(rows.framework == COMMAND) & rows.speedup.notna()])
    by_name = {row["configuration"]: row for row in held}
    pairs = [(row, by_name.get(row["baseline"], row)) for row in held]
    key = "batch_per_worker"
    apart = [(a[key], b[key]) for a, b in pairs if unlike_work(a, b)]
    if not apart:
        return []
    own, base = (", ".join(map(str, sorted(set(each)))) for each in zip(*apart, strict=True))
    return [
        f"At unlike work: batch {own} a worker is compared with the baseline's batch {base}, so there is no efficiency."
    ]


def of_gates(gates: pd.DataFrame) -> list[str]:
    """The verdicts of gates (columns.TRIALS) in words, each once, where there is no table yet to stand under."""
    bad = gates[~gates.parity.isin((PASSED, NOT_CHECKED))]
    lines = [f"Parity: {(gates.parity == PASSED).sum()} of {len(gates)} checks passed."] if len(gates) else []
    named = bad.groupby("parity", sort=False, dropna=False).trial.agg(", ".join)
    return lines + [f"{FAILED_SIGN} {FAULTY}: {verdict} ({trials})." for verdict, trials in named.items()]


# Configurations that shared launches: their ratios within each launch, and how far these differ between launches.

COLUMNS = tuple(column.name for column in columns.LAUNCHES)
LaunchesRow = Mapping[Any, Any]


def add(rows: Iterable[dict[Any, Any]]) -> None:
    """Enter COLUMNS in the rows (columns.of_configurations) of one study that shared launches."""
    shared = [row for row in rows if row["repeat_launches"]]
    # More than were planned were added because of the spread of these.
    planned = launches.logs_by_launch([_planned_logs(row) for row in shared])
    for row, spread in zip(shared, launches.spreads(planned, list(map(_processes, shared))), strict=True):
        values = (math.sqrt(spread.variance), spread.freedom, math.sqrt(spread.processes), spread.processes_freedom)
        row |= dict(zip(COLUMNS, (*values, spread.members), strict=True))


def _processes(row: LaunchesRow) -> tuple[Any, ...]:
    """Equal for two rows that one group of processes measures, as groups.processes is for their trials."""
    return *values_of(row, ALIKE), apart(row["framework"], row["configuration"])


def logs(row: LaunchesRow) -> dict[str, float]:
    """Log samples per second in each launch, by the name of all that were alive together: `3/0` of `3/0-1-horovod`."""
    if not (names := launches_names(row)):
        return {}
    return dict(zip(map(launches.together, names), map(math.log, values(row)), strict=True))


def _planned_logs(row: LaunchesRow) -> dict[str, float]:
    return dict(islice(logs(row).items(), int(row["planned"])))


def common(rows: Sequence[LaunchesRow]) -> list[str]:
    """The launches that these with a known spread shared, but for some that took no part in enough of them: one that is
    missing does not take the others' away. None where there are too few for an interval."""
    shared = [logs(row) for row in rows if spread_of(row) is not None]
    while len(shared) > 1:
        names = [name for name in shared[0] if all(name in others for others in shared)]
        if len(names) >= FEWEST_REPEATS:
            return names
        members = Counter(name for each in shared for name in each)
        full = [sum(sorted(members[name] for name in each)[-FEWEST_REPEATS:]) for each in shared]
        shared.pop(len(full) - 1 - full[::-1].index(min(full)))  # the last of those with the emptiest launches
    return []


def launches_names(row: LaunchesRow) -> list[str]:
    """The launches of its repeats that are ok; none of one that had launches to itself."""
    return _of_repeats(row.get("repeat_launches"))


def spread_of(row: LaunchesRow) -> LaunchSpread | None:
    """None where it is not known: of what had launches to itself, or shared too few."""
    if not launches_names(row) or not known(row["launch_members"]):
        return None
    own, freedom, processes, processes_freedom, members = (row[name] for name in COLUMNS)
    return LaunchSpread(own**2, freedom, processes**2, processes_freedom, int(members))


def launches_ratio(a: LaunchesRow, b: LaunchesRow, confidence: float = 0.95) -> Interval | None:
    """The throughput of one over that of another, of the launches that they shared; None where these say nothing."""
    if (seen := _log_ratio(a, b)) is None:
        return None
    half = student_t(confidence, seen.freedom) * seen.error
    mean, low, high = (math.exp(seen.mean + by) for by in (0.0, -half, half))
    return Interval(mean, low, high, seen.launches)


def needed(a: LaunchesRow, b: LaunchesRow, target: float) -> int | None:
    """How many launches, all planned, would bring the interval of that ratio to +-`target`; None where nothing is known
    of it."""
    return launches.needed(*_variance(a, b), target, measured=len(_planned_differences(a, b))) or None


def share_of_processes(a: LaunchesRow, b: LaunchesRow) -> float:
    """How wide the interval of a ratio is that the same processes measured, over that of two with processes of their
    own which differ as much; 1 where nothing is known."""
    spread, other = spread_of(a), spread_of(b)
    if spread is None or other is None:
        return 1.0
    same, apart = (launches.of_ratio(spread, other, together)[0] for together in (True, False))
    return min(1.0, math.sqrt(same / apart)) if same and apart else 1.0


def p_value(a: LaunchesRow, b: LaunchesRow) -> float | None:
    """How likely a ratio as far from 1 is by chance; None where no launches say it. With no error at all: 0, or 1."""
    from scipy.special import stdtr

    if (seen := _log_ratio(a, b)) is None:
        return None
    if not seen.error:
        return float(not seen.mean)
    return float(2 * stdtr(seen.freedom, -abs(seen.mean) / seen.error))


def interval_of(pairs: Iterable[tuple[LaunchesRow, LaunchesRow]]) -> str:
    """In words, what the intervals of these ratios are of."""
    shared = [_log_ratio(a, b) is not None for a, b in pairs]
    if not any(shared):
        return "between repeats, Welch"
    return "within launches that both shared" + ("" if all(shared) else ", else between repeats, Welch")


class LogRatio(NamedTuple):
    """The log ratio of two configurations over the launches that both shared: its mean and standard error."""

    mean: float
    error: float
    freedom: float
    launches: int


def _log_ratio(a: LaunchesRow, b: LaunchesRow) -> LogRatio | None:
    ours, theirs = logs(a), logs(b)
    shared = [name for name in ours if name in theirs]
    variance, freedom = _variance(a, b)
    if len(shared) < FEWEST_REPEATS or not freedom:
        return None
    mean = sum(ours[name] - theirs[name] for name in shared) / len(shared)
    return LogRatio(mean, math.sqrt(variance / len(shared)), freedom, len(shared))


def _variance(a: LaunchesRow, b: LaunchesRow) -> tuple[float, float]:
    """(variance, degrees of freedom) of the log ratio of two in one launch; (0, 0) where they are unknown."""
    spread, other = spread_of(a), spread_of(b)
    if spread is None or other is None:
        return 0.0, 0.0
    same_processes = bool({*launches_names(a)} & {*launches_names(b)})
    return launches.of_ratio(spread, other, same_processes, _planned_differences(a, b))


def _planned_differences(a: LaunchesRow, b: LaunchesRow) -> list[float]:
    return launches.differences(_planned_logs(a), _planned_logs(b))


def summarise(trials: pd.DataFrame, study: StudyInfo) -> pd.DataFrame:
    """`trials` (columns.TRIALS, without gates) -> columns.of_configurations(), in the order of the trial keys.

    `n` counts the repeats that are ok, `planned` those of them that were planned before any was seen, `repeats` all
    that finished, `too_short` those ok whose run was;
    `failures` reads `oom: 1, oom (implied): 2`; `repeat_values` holds the samples per second of each, separated by `;`.
    `repeats_needed` is how many repeats this spread would need for the study's target_interval.
    `parity` is the verdict of its gates; `not_comparable` why its speed claims nothing, empty where it may.
    """
    folds = columns.number_folds()
    good = trials[trials.status == "ok"][["configuration", *folds]]
    folded = good.groupby("configuration").agg(folds).to_dict("index")
    groups = grouped(as_rows(trials), lambda trial: str(trial["configuration"]))
    rows = [_configuration(group, study) | folded.get(name, {}) for name, group in groups.items()]
    add(rows)
    baselines = candidates(rows, study)
    for row in rows:
        row |= _speedup(row, baselines.get(str(row["model"]), []), study)
    order = ["model", "framework", "workers", "allreduce", *BATCH_KEYS]
    kinds = columns.dtypes(columns.of_configurations())
    places = typed(rows, {name: kinds[name] for name in order}).sort_values(order, kind="stable").index
    return typed([rows[place] for place in places], kinds)


def values(configuration: Mapping[Any, Any]) -> list[float]:
    """The samples per second of each repeat that is ok; the planned ones come first."""
    return list(map(float, _of_repeats(configuration["repeat_values"])))


def _of_repeats(text: str | None) -> list[str]:
    """`1;2;3` apart."""
    return text.split(";") if known(text) and text else []


def over(a: Mapping[Any, Any], b: Mapping[Any, Any], confidence: float = 0.95) -> Interval:
    """The throughput of one configuration over that of another. Both have repeats that are ok."""
    paired = launches_ratio(a, b, confidence)
    return paired or ratio(values(a), values(b), confidence, first=(int(a["planned"]), int(b["planned"])))


def _configuration(group: list[dict[Any, Any]], study: StudyInfo) -> dict[Any, Any]:
    """One row from the trials of one configuration, which agree in every key but the repeat."""
    # Those that were planned first, as what comes after them is there for their spread; ids put r10 before r2.
    group = sorted(group, key=lambda t: (not _planned(t), int(t["repeat"])))
    good, bad = ([t for t in group if (t["status"] == "ok") is ok] for ok in (True, False))
    bad.sort(key=implied)  # what was measured speaks first
    failed = Counter(map(word, bad))
    speeds = [float(t["samples_per_second"]) for t in good]
    first = sum(map(_planned, good))
    shared = [t["launch"] for t in good if known(t["launch"]) and "/" in t["launch"]]
    row = {column.name: group[0][column.name] for column in columns.TRIALS if column.repeats is columns.alike}
    row |= {name: fold([t[name] for t in good]) for name, fold in columns.text_folds().items()}
    row |= {
        "status": "ok" if good else bad[0]["status"],
        "reason": "" if good else bad[0]["reason"],
        "failures": ", ".join(f"{name}: {failed[name]}" for name in (*STATUSES, IMPLIED) if failed[name]),
        "repeats": len(group),
        "n": len(good),
        "planned": first,
        "started_at": min((t["started_at"] for t in group if known(t["started_at"])), default=""),
        "oversubscribed": oversubscribed(row, study),
        "not_comparable": why_not(row),
        "too_short": sum(t["reason"] == TOO_SHORT for t in good),
        "repeat_values": ";".join(map(repr, speeds)),
        "repeat_launches": ";".join(shared) if len(shared) == len(good) else "",
    }
    if good:
        interval = between_repeats(speeds, first=first)
        needed = repeats_needed(speeds, study.target_interval) if len(good) >= FEWEST_REPEATS else None
        row |= {"samples_per_second": interval.mean, "interval_low": interval.low, "interval_high": interval.high}
        row |= {"relative_half_width": interval.relative_half_width, "repeats_needed": needed}
    return row


def _planned(trial: Mapping[Any, Any]) -> bool:
    """True for a repeat that was planned before the spread of any repeat was known."""
    return not known(trial["planned_repeats"]) or int(trial["repeat"]) <= int(trial["planned_repeats"])


def _speedup(row: dict[Any, Any], baselines: list[dict[Any, Any]], study: StudyInfo) -> dict[Any, Any]:
    """Speed-up and efficiency of one row, or the reason why there is none."""
    reference = find(row, baselines, study)
    if study.baseline is not None and not row["n"]:
        return {"speedup_reason": f"not measured: {word(row)}"}
    if row["not_comparable"]:
        return {"speedup_reason": row["not_comparable"]}
    if isinstance(reference, str):
        return {"speedup_reason": reference}
    named = reference["configuration"]
    name: dict[Any, Any] = {"baseline": named}
    why = ""
    if reference["not_comparable"]:
        why = f"its baseline: {reference['not_comparable']} ({named})"
    elif row["oversubscribed"] or reference["oversubscribed"]:
        whose = "" if row["oversubscribed"] else "its baseline is "
        why = f"{whose}oversubscribed: more workers than the machine has room for"
    elif not reference["n"]:
        why = f"its baseline is not ok: {word(reference)} ({named})"
    if why:
        return name | {"speedup_reason": why}
    if reference is row:  # 1 by definition, without any doubt that an interval could express
        return name | {"speedup": 1.0, "efficiency": 1.0, "speedup_reason": ""}
    ideal = int(row["workers"]) / int(reference["workers"])
    gain, alike = over(row, reference), not unlike_work(row, reference)
    result = name | {"speedup_reason": ""}
    for end, value in (("", gain.mean), ("_low", gain.low), ("_high", gain.high)):
        result |= {f"speedup{end}": value, f"efficiency{end}": value / ideal if alike and value is not None else None}
    return result


def oversubscribed(configuration: Mapping[str, Any], study: StudyInfo) -> bool:
    """True where it may, and did, run more workers than the machine has GPUs or cores for."""
    if not known(configuration["oversubscribe"]) or not configuration["oversubscribe"]:
        return False
    gpus, cores = study.machine.get("gpus"), study.machine.get("cores")
    share = configuration["cores_per_worker"]
    on_gpu = configuration["device"] == "cuda"
    have = len(gpus) if on_gpu and gpus is not None else None if on_gpu else cores
    need = int(configuration["workers"]) * (1 if on_gpu or not known(share) else int(share))
    return have is None or need > int(have)
