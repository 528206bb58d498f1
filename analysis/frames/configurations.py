"""Trials -> one row a configuration: configurations.csv. Throughput over its repeats, speed-up, efficiency.

Every interval here is 95 %, between repeats: Student t for a throughput, Welch on the logarithm for a speed-up, which
is taken within launches where both shared them (launches.py).
With fewer than 3 repeats that are ok the number stands alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from analysis.frames import baseline, comparability, launches, outcomes
from analysis.frames.over_ranks import COMMUNICATION_COLUMNS, MEMORY_COLUMNS, PHASE_COLUMNS
from analysis.frames.row_types import Outcome
from analysis.frames.rows import as_rows, typed
from analysis.frames.study import StudyInfo
from analysis.frames.trials import INTEGERS, TRIAL_KEYS
from scaling_study.records.store import STATUSES
from scaling_study.stats.intervals import FEWEST_REPEATS, TOO_SHORT, Interval, between_repeats, ratio, repeats_needed

KEYS = tuple(key for key in TRIAL_KEYS if key != "repeat")
MEANS = (
    *("tokens_per_second", "step_seconds_mean", *PHASE_COLUMNS, "launch_seconds"),
    *("achieved_over_target", "overlap", "gpu_utilization_percent", "energy_joules", "loss_first", "loss_last"),
)
MAXIMA = (
    *("parameters", "allreduce_bytes", "communication_bytes", *COMMUNICATION_COLUMNS),
    *("peak_memory_bytes", *MEMORY_COLUMNS),
)
COLUMNS = (
    *("study", "configuration", *KEYS, "status", "reason", "repeats", "n", "planned"),
    *("samples_per_second", "interval_low", "interval_high", "relative_half_width", "repeats_needed"),
    *("speedup", "speedup_low", "speedup_high", "efficiency", "efficiency_low", "efficiency_high"),
    *("baseline", "speedup_reason", "parity", "not_comparable", "oversubscribed", "too_short", *MAXIMA, *MEANS),
    *("carrier", "data_source", "started_at", "failures", "repeat_values", "repeat_launches", *launches.COLUMNS),
    "parity_gates",
)
ALIKE = ("study", "configuration", *KEYS, "parity", "parity_gates")  # the same for all repeats
OF_EACH = (
    *("configuration", "repeat", "status", "reason", "samples_per_second"),
    *("planned_repeats", "started_at", "launch", "data_source", "carrier"),
)  # what is taken from its trials one by one
TEXTS = (
    *("study", "configuration", "status", "reason", "baseline", "speedup_reason", "parity", "not_comparable"),
    *("carrier", "data_source", "started_at", "failures", "repeat_values", "repeat_launches", "parity_gates"),
)


def summarise(trials: pd.DataFrame, study: StudyInfo) -> pd.DataFrame:
    """`trials` (trials.COLUMNS, without gates) -> COLUMNS, in the order of the trial keys.

    `n` counts the repeats that are ok, `planned` those of them that were planned before any was seen, `repeats` all
    that finished, `too_short` those ok whose run was;
    `failures` reads `oom: 1, oom (implied): 2`; `repeat_values` holds the samples per second of each, separated by `;`.
    `repeats_needed` is how many repeats this spread would need for the study's target_interval.
    `parity` is the verdict of its gates; `not_comparable` why its speed claims nothing, empty where it may.
    """
    by_configuration = trials[["configuration", *MEANS, *MAXIMA]][trials.status == "ok"].groupby("configuration")
    folded = by_configuration[list(MEANS)].mean().join(by_configuration[list(MAXIMA)].max()).to_dict("index")
    groups: dict[str, list[dict[Any, Any]]] = {}
    for trial in as_rows(trials[list(OF_EACH)]):
        groups.setdefault(trial["configuration"], []).append(trial)
    alike = as_rows(trials.loc[~trials.configuration.duplicated(), list(ALIKE)])
    rows = [
        _configuration(keys, group, study) | folded.get(name, {})
        for keys, (name, group) in zip(alike, groups.items(), strict=True)
    ]
    launches.add(rows)
    baselines = baseline.candidates(rows, study)
    for row in rows:
        row |= _speedup(row, baselines.get(str(row["model"]), []), study)
    order = ["model", "framework", "workers", "allreduce", *baseline.BATCH_KEYS]
    kinds: dict[str, Any] = {key: trials[key].dtype for key in KEYS}
    whole = ("repeats", "n", "planned", "repeats_needed", "too_short", "launch_members")
    kinds |= dict.fromkeys(whole + tuple(name for name in MAXIMA if name in INTEGERS), "Int64")
    kinds |= dict.fromkeys(TEXTS, "string") | {"oversubscribed": "boolean"}
    kinds = {name: kinds.get(name, "float64") for name in COLUMNS}
    places = typed(rows, {name: kinds[name] for name in order}).sort_values(order, kind="stable").index
    return typed([rows[place] for place in places], kinds)


def values(configuration: Mapping[Any, Any]) -> list[float]:
    """The samples per second of each repeat that is ok; the planned ones come first."""
    text = configuration["repeat_values"]
    return [float(value) for value in text.split(";")] if baseline.known(text) and text else []


def over(a: Mapping[Any, Any], b: Mapping[Any, Any], confidence: float = 0.95) -> Interval:
    """The throughput of one configuration over that of another. Both have repeats that are ok."""
    paired = launches.ratio(a, b, confidence)
    return paired or ratio(values(a), values(b), confidence, first=(int(a["planned"]), int(b["planned"])))


def _configuration(keys: dict[Any, Any], group: list[dict[Any, Any]], study: StudyInfo) -> dict[Any, Any]:
    """One row from the trials of one configuration, which agree in every key but the repeat."""
    # Those that were planned first, as what comes after them is there for their spread; ids put r10 before r2.
    group = sorted(group, key=lambda t: (not _planned(t), int(t["repeat"])))
    good, bad = ([t for t in group if (t["status"] == "ok") is ok] for ok in (True, False))
    bad.sort(key=lambda t: outcomes.implied(_outcome(t)))  # what was measured speaks first
    failed = [outcomes.word(_outcome(t)) for t in bad]
    counts = {name: failed.count(name) for name in (*STATUSES, outcomes.IMPLIED)}
    speeds = [float(t["samples_per_second"]) for t in good]
    first = sum(map(_planned, good))
    shared = [t["launch"] for t in good if baseline.known(t["launch"]) and "/" in t["launch"]]
    row = keys | {
        "status": "ok" if good else bad[0]["status"],
        "reason": "" if good else bad[0]["reason"],
        "failures": ", ".join(f"{status}: {count}" for status, count in counts.items() if count),
        "repeats": len(group),
        "n": len(good),
        "planned": first,
        "started_at": min((t["started_at"] for t in group if baseline.known(t["started_at"])), default=""),
        "oversubscribed": oversubscribed(keys, study),
        "not_comparable": comparability.why_not(keys),
        "too_short": sum(t["reason"] == TOO_SHORT for t in good),
        "carrier": _different(t["carrier"] for t in good),
        "data_source": _different(t["data_source"] for t in good),
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
    """Whether it was to be run before the spread of any was known."""
    return not baseline.known(trial["planned_repeats"]) or int(trial["repeat"]) <= int(trial["planned_repeats"])


def _different(texts: Iterable[Any]) -> str:
    return "; ".join(dict.fromkeys(text for text in texts if baseline.known(text) and text))


def _outcome(row: Mapping[Any, Any]) -> Outcome:
    return {"status": row["status"], "reason": row["reason"]}


def _speedup(row: dict[Any, Any], baselines: list[baseline.Configuration], study: StudyInfo) -> dict[Any, Any]:
    """Speed-up and efficiency of one row, or the reason why there is none."""
    reference = baseline.find(row, baselines, study)
    if study.baseline is not None and not row["n"]:
        return {"speedup_reason": f"not measured: {outcomes.word(_outcome(row))}"}
    if row["not_comparable"]:
        return {"speedup_reason": row["not_comparable"]}
    if isinstance(reference, str):
        return {"speedup_reason": reference}
    name: dict[Any, Any] = {"baseline": reference["configuration"]}
    if reference["not_comparable"]:
        return name | {"speedup_reason": f"its baseline: {reference['not_comparable']} ({reference['configuration']})"}
    if row["oversubscribed"] or reference["oversubscribed"]:
        whose = "" if row["oversubscribed"] else "its baseline is "
        return name | {"speedup_reason": f"{whose}oversubscribed: more workers than the machine has room for"}
    if not reference["n"]:
        why = f"its baseline is not ok: {outcomes.word(_outcome(reference))} ({reference['configuration']})"
        return name | {"speedup_reason": why}
    if reference is row:  # 1 by definition, without any doubt that an interval could express
        return name | {"speedup": 1.0, "efficiency": 1.0, "speedup_reason": ""}
    ideal = int(row["workers"]) / int(reference["workers"])
    gain = over(row, reference)
    bounds = {"speedup": gain.mean, "speedup_low": gain.low, "speedup_high": gain.high}
    efficiency = {
        key.replace("speedup", "efficiency"): None if value is None else value / ideal for key, value in bounds.items()
    }
    return name | bounds | efficiency | {"speedup_reason": ""}


def oversubscribed(configuration: Mapping[str, Any], study: StudyInfo) -> bool:
    """Whether it was allowed to, and did, run more workers than the machine has GPUs or cores for."""
    if not baseline.known(configuration["oversubscribe"]) or not configuration["oversubscribe"]:
        return False
    gpus, cores = study.machine.get("gpus"), study.machine.get("cores")
    share = configuration["cores_per_worker"]
    on_gpu = configuration["device"] == "cuda"
    have = len(gpus) if on_gpu and gpus is not None else None if on_gpu else cores
    need = int(configuration["workers"]) * (1 if on_gpu or not baseline.known(share) else int(share))
    return have is None or need > int(have)
