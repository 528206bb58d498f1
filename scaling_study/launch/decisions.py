"""Decisions of a sweep about its trials: which failures are tried again, which batches run, how many repeats. Pure.

port in use, ranks that did not meet     tried again after a pause: `failure_kind`, `back_off_seconds`
32 ok, 64 oom                            128 and 256 are implied by it: `Limits`
32 ok, 64 ok, 128 ok, 256 oom            192 ok, 224 oom, 208 ok ... until they are 3 % apart: `largest_batch`
3 repeats, +-4 %                         12 repeats in all bring it to +-2 %: `total_repeats`
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from scaling_study.records.results import Summary
from scaling_study.records.schema import IMPLIED, RankError
from scaling_study.stats import launches
from scaling_study.stats.intervals import FEWEST_REPEATS, repeats_for
from scaling_study.study import groups
from scaling_study.study.plan import Planned
from scaling_study.trial import Trial

# --- failures that are tried again
#
# They are recognised by the exact messages of the libraries that report them. A rank that fails leaves its exception's
# type and message as JSON (worker/script.py). A launcher that fails before any rank has started leaves an exit code and
# a log, which decides whether to try once more; no number is taken from it. A wrong result is never tried again, nor
# anything after the first step of the shared clock: whatever happened then is a result.

PORT, RENDEZVOUS = "port", "rendezvous"
BACK_OFF_SECONDS = (1.0, 4.0, 16.0, 60.0)  # before the second attempt, the third, ...; the last for all beyond
LOG_BYTES = 1 << 16  # of the log's end that are looked at
LISTEN = ("The server socket has failed to listen on any local network address", "EADDRINUSE")


# (kind, exception, words that its message has when, and only when, this has happened)
FROM_RANKS = (
    (PORT, "DistNetworkError", LISTEN),  # torch 2.15, TCPStore
    (PORT, "OSError", ("[Errno 98] Address already in use",)),  # Python 3.11 on Linux
    (RENDEZVOUS, "DistNetworkError", ("The client socket has timed out after ", " while trying to connect to ")),
    (RENDEZVOUS, "DistStoreError", ("Timed out after ", " waiting for clients. ")),  # torch 2.15, TCPStore
    (RENDEZVOUS, "RuntimeError", ("Gloo connectFullMesh failed with ",)),  # torch 2.15, Gloo
    (RENDEZVOUS, "DistBackendError", ("NCCL error in: ", ": connect to ", " failed : ")),  # NCCL 2.30's source
)
FROM_LAUNCHERS = (  # (kind, words of the log, which has no exceptions)
    (PORT, LISTEN),  # torch 2.15, torchrun
    (RENDEZVOUS, ("The PMIx server's listener thread failed to start.",)),  # Open MPI 5.0, PMIx 5
    (RENDEZVOUS, ("HTTP GET request failed too many times, aborting.", "HTTP request failed.")),  # Horovod 0.28.1, Gloo
)
PEERS = ("DistNetworkError", "DistStoreError", "DistBackendError")  # what the other ranks raise once one is missing


def failure_kind(errors: Sequence[RankError], reports: bool, log: str) -> str:
    """`port`, `rendezvous`, or empty for every failure that is not transient.

    `errors`: of the ranks, the earliest first; `reports`: whether any rank left a measurement; `log`: its end.
    """
    if reports or any(error.stepping for error in errors):
        return ""
    if not errors:
        return next((kind for kind, words in FROM_LAUNCHERS if all(each in log for each in words)), "")
    kinds = [_error_kind(error) for error in errors]
    if any(not kind and error.type not in PEERS for kind, error in zip(kinds, errors, strict=True)):
        return ""  # a rank failed for another reason: it is the cause, and it would fail again
    return PORT if PORT in kinds else kinds[0]


def back_off_seconds(attempt: int) -> float:
    """The pause after the attempt-th attempt, counted from 1."""
    return BACK_OFF_SECONDS[min(attempt, len(BACK_OFF_SECONDS)) - 1]


def _error_kind(error: RankError) -> str:
    for kind, exception, words in FROM_RANKS:
        if exception == error.type and all(each in error.message for each in words):
            return kind
    return ""


# --- a batch that is larger than one without memory for it


class Limits:
    """The batch sizes that were out of memory, and those that fitted, as far as trials have shown.

    Trials are of one family if they are the same in every key but the batch size and the repeat. An out-of-memory
    implies one for larger batches only as long as no batch of its size or more was ok.
    """

    def __init__(self) -> None:
        self._fitted: dict[Trial, int] = {}  # family -> the largest batch that was ok
        self._failed: dict[Trial, dict[int, str]] = {}  # family -> batch -> the trial that was out of memory

    def learn(self, known: Summary) -> None:
        """Take note of a finished trial. One that was itself implied shows nothing."""
        family, batch = _family(known.trial), known.trial.batch_per_worker
        if known.status == "ok":
            self._fitted[family] = max(batch, self._fitted.get(family, 0))
        elif known.status == "oom" and not known.implied:
            self._failed.setdefault(family, {}).setdefault(batch, known.id)

    def implied(self, trial: Trial) -> str:
        """Why the trial would be out of memory, as the reason of its record; empty if nothing says so."""
        family = _family(trial)
        fitted, failed = self._fitted.get(family, 0), self._failed.get(family, {})
        least = min((batch for batch in failed if batch > fitted), default=trial.batch_per_worker)
        if trial.find is not None or least >= trial.batch_per_worker:
            return ""
        return f"{IMPLIED}batch_per_worker={least} was out of memory ({failed[least]})"


def _family(trial: Trial) -> Trial:
    """Equal workers make global_batch grow with batch_per_worker: strong scaling needs no rule of its own."""
    return replace(trial, batch_per_worker=1, repeat=1)


# --- the largest batch that fits

RESOLUTION = 32  # the answer is exact to 1/32 of itself
MOST = 1_000_000


def largest_batch(fits: Callable[[int], bool], start: int) -> int | None:
    """The largest batch size that `fits`, to 1/RESOLUTION of it; None if not even one sample does.

    Doubles `start` until a size does not fit, then bisects between the two. `fits` is asked for each size at most once,
    and is taken to hold for everything below a size for which it holds. Each try is a new group of processes: an
    allocator that ran out of memory once is no longer representative, and ranks whose peer has died would wait.
    """
    good, bad = 0, None
    size = start
    while size and bad is None:
        if fits(size):
            good, size = size, min(2 * size, MOST)
            if good == MOST:
                return good
        else:
            bad = size
    while bad is not None and bad - good > max(1, good // RESOLUTION):
        middle = (good + bad) // 2
        good, bad = (middle, bad) if fits(middle) else (good, middle)
    return good or None


# --- repeats: Stein's two stages
#
#     launched by itself        as many as bring its throughput to +-target_interval
#     in shared launches        as many launches as bring its ratio to the baseline there, a ratio that is taken within
#                               each launch and that a drift of the machine leaves alone. The baseline gets as many as
#                               the configurations that are held against it. Its own throughput counts where none of its
#                               model and batch is held against it, or nothing is known of the ratio
#
# Adding repeats one at a time until the interval looks narrow would stop at lucky streaks, and the interval would cover
# less than its nominal 95 % (docs/internals/how-sure.md has the figures).

Known = Callable[[Planned, int], Summary | None]  # the record of a configuration's n-th repeat, if it is finished
BY_SIGN = "sign"  # of `settled_by`


def total_repeats(
    configurations: Sequence[Planned], known: Known, baseline: Collection[str], scaling: str
) -> dict[str, int]:
    """Configuration -> its repeats in all: from the planned ones up to max_repeats. A failure adds none."""
    asked = wanted_repeats(configurations, known, baseline, scaling)
    return {
        name: min(max(planned.measure.repeats, asked.get(name, 0)), planned.measure.max_repeats)
        for name, planned in _by_name(configurations).items()
    }


def wanted_repeats(
    configurations: Sequence[Planned],
    known: Known,
    baseline: Collection[str],
    scaling: str,
    target: float | None = None,
) -> dict[str, int]:
    """Configuration -> the repeats that bring its interval to `target` (None: its own target_interval).

    Only configurations whose planned repeats are all ok are in it. `baseline`: the study's, whose pairs with others
    `scaling` decides.
    """
    asked = _by_name(configurations)
    measured = {name: records for name, planned in asked.items() if (records := _all(planned, known))}
    shared = {name: asked[name] for name, records in measured.items() if all(record.launch for record in records)}
    counts = _of_alternating(asked, measured, baseline, target)
    counts |= _of_ratios(shared, measured, baseline, scaling, target) if baseline and shared else {}
    for name, records in measured.items():
        if name not in counts:
            rates = [record.samples_per_second or math.nan for record in records]
            counts[name] = repeats_for(rates, target or asked[name].measure.target_interval)
    return {name: max(count, asked[name].measure.repeats) for name, count in counts.items()}


def _by_name(configurations: Sequence[Planned]) -> dict[str, Planned]:
    return {planned.trial.configuration: planned for planned in configurations}


def _all(planned: Planned, known: Known) -> list[Summary]:
    """The planned repeats of a configuration, if all are ok and there are enough of them; else none."""
    count = planned.measure.repeats
    if planned.seeds or planned.unsupported or count < FEWEST_REPEATS:
        return []
    records = [record for repeat in range(1, count + 1) if (record := known(planned, repeat))]
    return records if len(records) == count and all(record.samples_per_second for record in records) else []


def _of_ratios(
    shared: Mapping[str, Planned],
    measured: Mapping[str, Sequence[Summary]],
    baseline: Collection[str],
    scaling: str,
    target: float | None,
) -> dict[str, int]:
    """Launches that bring ratios to the target: of configurations that shared launches, and of their baseline."""
    names = list(shared)
    logs = [
        {launches.together(record.launch): math.log(record.samples_per_second or math.nan) for record in measured[name]}
        for name in names
    ]
    whose = {name: groups.processes(planned.trial) for name, planned in shared.items()}
    spreads = dict(zip(names, launches.spreads(launches.logs_by_launch(logs), list(whose.values())), strict=True))
    counts = dict[str, int]()
    held = {name: planned for name, planned in shared.items() if name not in baseline}
    for other in set(baseline) & set(shared):
        for name, planned in held.items():
            by_sign = planned.measure.settled_by == BY_SIGN  # whatever the batches
            if by_sign or groups.comparable(shared[other].trial, planned.trial, scaling):
                each = [logs[names.index(one)] for one in (name, other)]
                ratios = launches.differences(*each)
                variance, freedom = launches.of_ratio(
                    spreads[name], spreads[other], whose[name] == whose[other], ratios
                )
                more = launches.needed(variance, freedom, target or planned.measure.target_interval)
                if by_sign and ratios and launches.is_sure(fmean(ratios), variance / len(ratios), freedom):
                    more = 0
                if freedom:
                    counts[name], counts[other] = (max(counts.get(one, 0), more) for one in (name, other))
    return counts


def _of_alternating(
    asked: Mapping[str, Planned],
    measured: Mapping[str, Sequence[Summary]],
    baseline: Collection[str],
    target: float | None,
) -> dict[str, int]:
    """The same where launches were not shared and `settled_by` is `sign`: ratios of independent means."""
    counts = dict[str, int]()
    logs = {name: [math.log(each.samples_per_second or math.nan) for each in of] for name, of in measured.items()}
    for other in set(baseline) & set(measured):
        for name in set(measured) - set(baseline):
            measure = asked[name].measure
            if measure.settled_by != BY_SIGN or all(each.launch for one in (name, other) for each in measured[one]):
                continue
            of_means = [
                (statistics.variance(logs[one]) / len(logs[one]), len(logs[one]) - 1.0) for one in (name, other)
            ]
            of_ratio, freedom = launches.total(of_means)
            more = launches.needed(of_ratio * len(logs[name]), freedom, target or measure.target_interval)
            if launches.is_sure(fmean(logs[name]) - fmean(logs[other]), of_ratio, freedom):
                more = 0
            if freedom:
                counts[name], counts[other] = (max(counts.get(one, 0), more) for one in (name, other))
    return counts
