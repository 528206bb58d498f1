"""A training command explained: ten questions that people ask of one (QUESTIONS), each with its answer and evidence.

An answer that nothing measured gives is `not known`; the evidence then says why, and what to run. The configuration
with the most workers is explained, and of these the one with the smallest batch; others are evidence. Intervals are
95 %, between launches.

    +x % at most           by a part that takes x / (1 + x) of a step and takes nothing any more (Amdahl)
    the network's part     what backward and update of the rank that waits least take beyond those of one process, where
                           these are scaled by what forward became beside other processes
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analysis.frames import results
from analysis.frames.configurations import known
from analysis.frames.measured import PHASES
from analysis.frames.results import Results
from analysis.frames.rows import ConfigurationRow
from analysis.frames.study import workers_text
from analysis.statistics import knee, scaling_laws
from analysis.statistics.knee import Extrapolation
from analysis.statistics.scaling_laws import Declined
from analysis.text import duration, flop_rate, number, percent, with_interval
from analysis.views import bottleneck, memory, roofline, steps
from analysis.views.attribution import Attribution, Part
from analysis.views.bottleneck import COMMUNICATE, COMPUTE, INPUT, MEMORY, OTHER, UNKNOWN, Bottleneck
from scaling_study.records.schema import DOUBT, LEAST_LATENESS, RankReport, Record
from scaling_study.stats.intervals import FEWEST_REPEATS, Interval, between_repeats, student_t

NOT_KNOWN = "not known"
COMPANY = "write {workers} in the command and give --workers 1,N"
BEFORE_ITS_STEPS = "of its whole life"  # in the note about peak memory (scaling_study/observe/inside.py)
OF_A_HOST = "by the host's clock: what a GPU computes counts where the host waits for it"
HOW = {  # names of bottleneck.ways() -> where people begin
    "Hiding all communication behind computing": "larger buckets, gradients in 16 bits, accumulation",
    "Input that never keeps a step waiting": "num_workers, prefetch_factor and pin_memory of the DataLoader",
    "Computing in half the time": "autocast or torch.compile, where the script uses neither",
    "Updating weights at no cost": "the optimiser's fused=True",
}
Numbers = Mapping[str, float | str | None]
Found = tuple[str, str, Numbers]  # text, evidence, numbers of an answer


class NotKnown(Exception):
    """Nothing that was measured answers the question. The message says why, and what to run."""


@dataclass(frozen=True)
class Explanation:
    """`numbers`: the text's, for programs; shares and gains of 1, seconds, bytes; null where none is claimed."""

    question: str
    text: str  # NOT_KNOWN where nothing measured gives one
    evidence: str
    numbers: Numbers = field(default_factory=dict)


@dataclass(frozen=True)
class Seen:
    """All that was measured of a command. `row`: the configuration that is explained. `launches`: configuration ->
    repeat -> its ranks in order, of what is ok. `peak_flops`: FLOP/s of one process's device, as given; `device_bytes`:
    memory of the smallest GPU."""

    results: Results
    row: ConfigurationRow
    launches: Mapping[str, Mapping[int, Sequence[RankReport]]]
    peak_flops: float | None = None
    device_bytes: int | None = None

    @property
    def name(self) -> str:
        return str(self.row["configuration"])

    @property
    def workers(self) -> int:
        return int(self.row["workers"])

    @property
    def ranks(self) -> list[Sequence[RankReport]]:
        """Of each launch."""
        return list(self.launches[self.name].values())

    @property
    def rate(self) -> float:
        """Samples a second of all processes."""
        return float(self.row["samples_per_second"])

    @property
    def step_seconds(self) -> float:
        return float(self.row["global_batch"]) / self.rate

    @cached_property
    def on_gpu(self) -> bool:
        return any(rank.device.startswith("cuda") for ranks in self.ranks for rank in ranks)

    @cached_property
    def gathers(self) -> bool:
        """True where weights were seen to be gathered, by the bytes: forward waits for collectives."""
        each = (rank for ranks in self.ranks for rank in ranks)
        return any(rank.communication_bytes.get("all_gather", 0) > 2 * rank.parameters for rank in each)

    def noted(self, words: str, otherwise: str) -> str:
        """The first note of a rank that has these words."""
        notes = (note for ranks in self.ranks for rank in ranks for note in rank.notes)
        return next((note for note in notes if words in note), otherwise)

    def hides_its_steps(self, configuration: str) -> bool:
        """True where the peak memory of a process came before its first step, and no step reached it."""
        ranks = (rank for launch in self.launches.get(configuration, {}).values() for rank in launch)
        return any(BEFORE_ITS_STEPS in note for rank in ranks for note in rank.notes)

    @cached_property
    def shares(self) -> dict[str, NDArray[np.float64]]:
        """Phase -> its share of a step, (launches,); of the phases that can be seen. Raises NotKnown."""
        ours = steps.steps(self.results).get(self.name)
        if ours is None:
            raise NotKnown("no process said how long the parts of its steps took")
        return {name: ours.shares[:, at] for at, name in enumerate(PHASES) if ours.exposed[at]}


# --- the questions ---


def speed(seen: Seen) -> Found:
    row, rate = seen.row, seen.rate
    low, high = (float(row[end]) if known(row[end]) else None for end in ("interval_low", "interval_high"))
    by, each = "by one process", ""
    if seen.workers > 1:
        by = f"by {seen.workers} processes, {number(rate / seen.workers)} by each"
        each = f", {row['batch_per_worker']} of each process"
    shown = with_interval(rate, low, high)
    text = f"{shown} samples/s {by}: {duration(seen.step_seconds)} for a step of {row['global_batch']} samples{each}"
    others = [
        f"{number(float(other['samples_per_second']))} samples/s with {keys_of(other)}"
        for other in seen.results.rows
        if other["n"] and other is not row
    ]
    numbers = {"samples_per_second": rate, "low": low, "high": high, "step_seconds": seen.step_seconds}
    numbers |= {"step_samples": int(row["global_batch"]), "processes": seen.workers}
    fewest = min(len(rank.step_seconds) for ranks in seen.ranks for rank in ranks)
    return text, "; ".join([f"{counted(row['n'])} of at least {fewest} steps", *others]), numbers


def parts(seen: Seen) -> Found:
    means = {name.replace("unattributed", "rest"): between_repeats(share) for name, share in seen.shares.items()}
    text = ", ".join(
        f"{name} {percent(share.mean)} ({bounded(share, 1e3 * seen.step_seconds)} ms)" for name, share in means.items()
    )
    where = OF_A_HOST if seen.on_gpu else "by each process's clock"
    evidence = f"means over {counted(len(seen.ranks))} and all processes, {where}; the parts add up to a step"
    return text, evidence, {f"{name}_share": share.mean for name, share in means.items()}


def ideal_loader(seen: Seen) -> Found:
    whose = " by the process that waits longest" if seen.workers > 1 else ""
    return gained(waiting(seen), seen, "{} of a step is waited" + whose + " for the next batch of a DataLoader")


def waiting(seen: Seen) -> Interval:
    """Share of a step in which the process that waits longest has no batch yet. Raises NotKnown."""
    longest = [max(seconds(rank, "data") / seconds(rank) for rank in ranks) for ranks in seen.ranks]
    if not any(longest):
        raise NotKnown("no torch DataLoader feeds the training; what reads batches otherwise is in the rest of a step")
    return between_repeats(longest)


def ideal_network(seen: Seen) -> Found:
    saved = network(seen)
    if seen.on_gpu or seen.gathers:
        why = OF_A_HOST if seen.on_gpu else "forward gathers weights too"
        return gained(saved, seen, "all that a step takes beyond that of one process, {}, counts as its: " + why)
    beyond = "backward and update take beyond those of one process at the pace of forward, on the rank that waits least"
    return gained(saved, seen, "{} of a step is what " + beyond)


def network(seen: Seen) -> Interval:
    """Share of a step that collectives take, against one process with the same batch. Raises NotKnown."""
    if seen.workers == 1:
        raise NotKnown(f"one process sends nothing: {COMPANY}")
    if seen.row["oversubscribed"]:
        raise NotKnown("there are fewer cores than processes, which wait for these too: give fewer workers")
    like = [row for row in seen.results.rows if row["n"] and row["batch_per_worker"] == seen.row["batch_per_worker"]]
    one_alone = next((str(row["configuration"]) for row in like if row["workers"] == 1), "")
    alone, ours = seen.launches.get(one_alone, {}), seen.launches[seen.name]
    pairs = [(ours[repeat], alone[repeat][0]) for repeat in ours if len(alone.get(repeat, ())) == 1]
    if not pairs:
        raise NotKnown(f"one process with this batch was not measured beside these {seen.workers}: {COMPANY}")
    if seen.on_gpu or seen.gathers:
        return between_repeats([1 - seconds(one) / fmean(map(seconds, ranks)) for ranks, one in pairs])
    return between_repeats([beyond_one(ranks, one) for ranks, one in pairs])


def beyond_one(ranks: Sequence[RankReport], one: RankReport) -> float:
    """Share of a step that backward and update take beyond those of `one` process, at the pace of the fastest forward.

    Of the rank that waits least there: it comes last, so it waits for no other rank. Raises NotKnown.
    """

    def after_forward(rank: RankReport) -> float:
        return seconds(rank, "backward") + seconds(rank, "optimizer")

    before, pace = seconds(one, "forward"), min(seconds(rank, "forward") for rank in ranks)
    if not before:
        raise NotKnown("no forward pass of a module was seen, whose pace would tell computing from communication")
    least = min(map(after_forward, ranks))
    return (least - pace / before * after_forward(one)) / fmean(map(seconds, ranks))


def equal_ranks(seen: Seen) -> Found:
    rank, late = last_rank(seen)
    return gained(late, seen, f"rank {rank} comes to backward " + "{} of a step after the last of the others")


def slowest_rank(seen: Seen) -> Found:
    rank, late = last_rank(seen)
    host, by = seen.ranks[0][rank].host, f"by {bounded(late, 1e3 * seen.step_seconds)} ms a step"
    if not is_resolved(late) or late.mean < LEAST_LATENESS:
        why = f"which is within chance or below {percent(LEAST_LATENESS)} of a step"
        return "none", f"rank {rank} on {host} comes last to backward, {by}, {why}", {"rank": None}
    compared = []
    for part, name in (("data", "data"), ("forward", "forward"), ("unattributed", "the rest")):
        own = fmean(seconds(ranks[rank], part) for ranks in seen.ranks)
        others = fmean(seconds(each, part) for ranks in seen.ranks for each in ranks if each.rank != rank)
        compared.append(f"{name} {duration(own)} against {duration(others)}")
    return f"rank {rank} on {host}, {by}", f"{', '.join(compared)} of the others", {"rank": rank, "host": host}


def last_rank(seen: Seen) -> tuple[int, Interval]:
    """(the rank that comes last to backward, how much later than the last of the others, as a share of a step).

    The interval holds for all ranks at once (Bonferroni), as the last is chosen among them. Raises NotKnown.
    """
    if seen.workers == 1:
        raise NotKnown("one process trains: there is none to wait for")
    if (count := len(seen.ranks)) < FEWEST_REPEATS:
        raise NotKnown(f"{counted(count)} cannot tell chance from a rank that is always slow")
    behind = [[rank.late.seconds / seconds(rank) for rank in ranks if rank.late] for ranks in seen.ranks]
    if {len(each) for each in behind} != {seen.workers}:
        raise NotKnown("the records do not say when each rank came to its backward pass, or ranks hold stages")
    late = np.array(behind)
    last = int(late.mean(axis=0).argmax())
    mean, error = float(late[:, last].mean()), float(late[:, last].std(ddof=1)) / math.sqrt(count)
    half = student_t(1 - 0.05 / seen.workers, count - 1) * error
    return last, Interval(mean, mean - half, mean + half, count)


def utilisation(seen: Seen) -> Found:
    every = roofline.utilisations(seen.results)
    used = next(each for each in every if each.row["configuration"] == seen.name)
    if used.flops_per_second is None:
        raise NotKnown(seen.noted("flops are not known", "the FLOPs of a step were not counted"))
    rate, peak = flop_rate(used.flops_per_second), seen.peak_flops or used.peak_flops_per_second
    if peak is None:
        raise NotKnown(f"each process does {rate}; say the peak of its device, like --peak-tflops 312")
    share, whose = used.flops_per_second / peak, "as given" if seen.peak_flops else "as measured"
    counted = "counted in all of one, with what is computed again"
    how = counted if used.by_whole_step else f"{roofline.PASSES} x those counted in forward"
    evidence = f"each process does {rate} of {flop_rate(peak)}, {whose}; FLOPs of a step: {how}"
    return f"{percent(share)} of the peak", evidence, {"mfu": share, "flops_per_second": used.flops_per_second}


def head_room(seen: Seen) -> Found:
    family = memory.family_of(seen.results).get(seen.name)
    if family is None:
        raise NotKnown("the peak memory of its processes was not recorded")
    peak = family.peaks[family.batches.index(int(seen.row["batch_per_worker"]))]
    host = seen.results.study.machine.get("memory_bytes") or 0
    own = host * len({rank.host for rank in seen.ranks[0]}) / seen.workers
    room = (seen.device_bytes or 0) if seen.on_gpu else own
    if not room:
        raise NotKnown(f"a process takes {gigabytes(peak)} at its peak; the memory of its device was not recorded")
    text = f"{gigabytes(peak)} of {gigabytes(room)} at the peak of a process ({percent(peak / room)})"
    at_batches = zip(family.batches, family.peaks, strict=True)
    seen_at = ", ".join(f"{gigabytes(size)} at batch {batch}" for batch, size in at_batches)
    of = "the GPU's memory, CUDA's own included" if seen.on_gpu else "the host's memory over its processes"
    of = "; ".join(filter(None, [of, seen.noted("peak memory is of", "")]))
    numbers: dict[str, float | str | None] = {"peak_bytes": peak, "room_bytes": room, "next_batch": None}
    more = "write {batch_per_worker} in the command and give --batch-per-worker N,2N to see what a sample takes"
    if hidden := [row for row in family.rows if seen.hides_its_steps(str(row["configuration"]))]:
        at = " and ".join(str(row["batch_per_worker"]) for row in hidden)
        more = f"at batch {at} no step took more than what came before, so what a sample takes is not seen"
    if family.line is None or hidden:
        return f"{text}; the next batch that fits is not known", f"{seen_at}, of {of}; {more}", numbers
    most = int((room - family.line[0]) / family.line[1])
    largest, most = max(family.batches), min(most, (family.smallest_out or most + 1) - 1)
    if most <= largest:
        return f"{text}; no larger batch fits", f"{seen_at}, of {of}", numbers
    numbers["next_batch"] = following = min(2 * largest, most)
    return f"{text}; by a line batch {following} fits, and up to {most}", f"{seen_at}, of {of}", numbers


def last_worker(seen: Seen) -> Found:
    batch = seen.row["batch_per_worker"]
    family = next((one for one in scaling_laws.families(seen.results) if one.about["batch_per_worker"] == batch), None)
    if family is None or len(family.rows) < 2 or family.workers[0] != 1:
        left_out = f" ({'; '.join(family.left_out)})" if family and family.left_out else ""
        raise NotKnown(f"one worker beside several with the same batch were not measured{left_out}: {COMPANY}")
    if min(map(len, family.repeats)) < FEWEST_REPEATS:
        raise NotKnown(f"fewer than {FEWEST_REPEATS} launches do not say how sure that is")
    many = len(family.rows) >= scaling_laws.FEWEST_COUNTS
    compared = scaling_laws.compare(family) if many else knee.of_few(family)
    if isinstance(compared, Declined) or compared.why:
        raise NotKnown(compared.why)
    found, added = knee.knee(Extrapolation(compared)), knee.returns(family)[-1]
    most = f"more than {found.looked}" if (found.high or 0) >= found.looked else str(found.high)
    workers = workers_text(found.low or 1) if str(found.low) == most else f"{found.low} to {most} workers"
    text = f"after {found.text}" if many else f"after {workers}"
    if (found.low or 0) >= found.looked:
        text = f"after none of up to {found.looked} workers"
    gave = with_interval(added.share, added.low, added.high)
    room = ", for which this host has room" if found.looked == family.most else ""
    kind = "curves" if many else "curves whose cost grows no faster than workers"
    evidence = (
        f"it pays while it adds {percent(found.share)} of what one does; from {added.before} to {added.after} each "
        f"added {gave}; looked at up to {found.looked}{room}, on {kind}: "
        f"{', '.join(fit.law.name for fit in compared.kept)}"
    )
    return text, evidence, {"low": found.low, "high": found.high}


def first_change(seen: Seen) -> Found:
    """The change that saves most of a step, by the shares of the answers before."""
    left = {name: float(share.mean()) for name, share in seen.shares.items()}
    loader = lag = sent = 0.0
    with contextlib.suppress(NotKnown):
        loader = waiting(seen).mean
    with contextlib.suppress(NotKnown):
        late = last_rank(seen)[1]
        lag = late.mean if is_resolved(late) else 0.0
    mixed = ("backward", "optimizer", "forward")
    try:
        remaining = sent = max(0.0, network(seen).mean)
        for name in mixed:
            taken = min(remaining, left[name])
            left[name], remaining = left[name] - taken, remaining - taken
    except NotKnown as why:
        if seen.workers > 1:
            if (both := sum(left[name] for name in mixed)) > max(loader, lag):
                raise NotKnown(f"{percent(both)} of a step computes or communicates, not told apart: {why}") from why
            left |= dict.fromkeys(mixed, 0.0)
    shares = {INPUT: loader, COMMUNICATE: sent, COMPUTE: left["forward"] + left["backward"], MEMORY: left["optimizer"]}
    shares[OTHER] = left["unattributed"]
    behind = Attribution(seen.row, "", 1.0, (Part("stragglers", lag, None, None),), None)
    found = bottleneck.remedies_of(Bottleneck(seen.row, UNKNOWN, "", shares), behind)
    if not found:
        raise NotKnown("no part of a step is worth a change")
    first, *others = found
    how = f" Begin with {HOW[first.name]}." if first.name in HOW else ""
    then = " ".join(["Then:", *(other.sentence for other in others[:2])]) if others else ""
    evidence = f"each by itself, from the shares above (Amdahl). {then}".rstrip()
    return f"{first.sentence}{how}", evidence, {"change": first.name, "gain_at_most": first.gain}


QUESTIONS: Sequence[tuple[str, Callable[[Seen], Found]]] = (
    ("How fast is it?", speed),
    ("Where does a step go?", parts),
    ("What would a loader give that never keeps a step waiting?", ideal_loader),
    ("What would a network give that takes no time?", ideal_network),
    ("What would equally fast ranks give?", equal_ranks),
    ("Which rank on which host do the others wait for?", slowest_rank),
    ("How much of its device's peak does a process use (MFU)?", utilisation),
    ("How much memory is left, and which larger batch fits?", head_room),
    ("After how many workers does another one stop paying?", last_worker),
    ("What to change first?", first_change),
)


# --- numbers ---


def seconds(rank: RankReport, part: str = "step") -> float:
    """Mean seconds of a step, or of a part of it. Raises NotKnown."""
    value = None if rank.phases is None else getattr(rank.phases, f"{part}_seconds")
    if value is None:
        raise NotKnown(f"no record has the seconds of {part}")
    return float(value)


def is_resolved(share: Interval) -> bool:
    """True where it is surely above 0."""
    return share.low is not None and share.low > 0


def gain(share: float) -> float:
    """Of throughput, where this share of a step is saved: 0.25 is 25 %."""
    return 1 / (1 - min(max(share, 0.0), 1 - 1e-9)) - 1


def gained(saved: Interval, seen: Seen, evidence: str) -> Found:
    """The answer of what would be saved: `at most +25 [24, 26] %: 1,015 samples/s`. `evidence` has {} for the share."""
    most = saved.mapped(gain)
    text = f"at most +{bounded(most, 100.0)} %: {number(seen.rate * (1 + most.mean))} samples/s"
    if most.mean > bottleneck.MOST_GAIN:
        text = "almost all of a step"
    elif most.high is not None and not is_resolved(saved):
        text = f"nothing that {saved.n} launches resolve, at most +{percent(most.high)}"
    numbers = {"gain_at_most": most.mean, "low": most.low, "high": most.high, "share": saved.mean}
    return text, evidence.format(f"{bounded(saved, 100.0)} %"), numbers


def bounded(value: Interval, unit: float = 1.0) -> str:
    """`812 [800, 824]`, in so many of its own units."""
    return with_interval(value.mean, value.low, value.high, lambda each: number(unit * each))


def counted(launches: int) -> str:
    """`1 launch`, `4 launches`."""
    return f"{launches} launch{'es' * (launches != 1)}"


def gigabytes(size: float) -> str:
    return f"{number(size / 1e9)} GB"


def keys_of(row: ConfigurationRow) -> str:
    return f"workers={row['workers']}, batch_per_worker={row['batch_per_worker']}"


# --- the page ---


@dataclass(frozen=True)
class Explained:
    """`about`: the command with the values that are explained. `failed`: configurations without a throughput -> why.
    `doubts`: why its processes may not train as it seems (scaling_study/observe/checks.py)."""

    about: str
    answers: Sequence[Explanation]
    failed: Mapping[str, str]
    doubts: Sequence[str] = ()

    def lines(self) -> Iterator[str]:
        """For a terminal."""
        yield self.about
        yield from self._before()
        yield from self._answers()

    def so_far(self) -> list[str]:
        """The answers that are known where the command was stopped; none before a launch has ended."""
        known = sum(answer.text != NOT_KNOWN for answer in self.answers)
        rest = f"{len(self.answers) - known} of {len(self.answers)} questions have no answer so far."
        if not (known or self.failed):
            return []
        return [f"So far: {self.about}", *self._before(), *self._answers(NOT_KNOWN), rest]

    def _before(self) -> Iterator[str]:
        """Sentences without which the answers may mislead."""
        yield from (f"Warning: {said}" for said in self.doubts)
        yield from (f"{keys}: {why}" for keys, why in self.failed.items())

    def _answers(self, without: str = "") -> Iterator[str]:
        """The questions with their answers, but for those with the text `without`."""
        for place, answer in enumerate(self.answers, start=1):
            if answer.text != without:
                yield from (f"{place:>2}  {answer.question}", f"    {answer.text}", f"    ({answer.evidence})")

    def to_markdown(self) -> str:
        answers = [
            f"## {place}. {answer.question}\n\n**{answer.text}**\n\n{answer.evidence}\n"
            for place, answer in enumerate(self.answers, start=1)
        ]
        return "\n".join([f"# `{self.about}`\n", *(f"{said}\n" for said in self._before()), *answers])

    def to_dict(self) -> dict[str, Any]:
        answers = [{**vars(answer), "known": answer.text != NOT_KNOWN} for answer in self.answers]
        return {"about": self.about, "answers": answers, "failed": self.failed, "doubts": list(self.doubts)}


def read(folder: Path, peak_flops: float | None = None, device_bytes: int | None = None) -> Explained:
    """The page from the results folder of a command's study. Raises NotResults."""
    records: list[Record] = []
    study = results.read(folder, records.append)
    failed = {keys_of(row): f"{row['failures']}: {row['reason']}" for row in study.rows if not row["n"]}
    good = [row for row in study.rows if row["n"]]
    if not good:
        why = "; ".join(failed.values()) or "no launch has finished: the same command goes on"
        return Explained(study.study.name, [Explanation(asked, NOT_KNOWN, why) for asked, _ in QUESTIONS], failed)
    launches: dict[str, dict[int, Sequence[RankReport]]] = {}
    for record in sorted(records, key=lambda record: record.trial.repeat):
        if record.status == "ok":
            ranks = sorted(record.ranks, key=lambda rank: rank.rank)
            launches.setdefault(record.configuration, {})[record.trial.repeat] = ranks
    row = max(good, key=lambda row: (int(row["workers"]), -int(row["batch_per_worker"])))
    seen = Seen(study, row, launches, peak_flops, device_bytes)
    about, answers = f"{row['command']}, {keys_of(row)}", [answered(seen, *asked) for asked in QUESTIONS]
    return Explained(about, answers, failed, list(doubts_of(good, records)))


def doubts_of(rows: Sequence[ConfigurationRow], records: Sequence[Record]) -> Iterator[str]:
    """What the observer doubts of the ranks of these configurations, each once, with the values that it is of."""
    keys = {str(row["configuration"]): keys_of(row) for row in rows}
    ranks = [(keys[each.configuration], rank) for each in records if each.configuration in keys for rank in each.ranks]
    notes = dict.fromkeys((of, note) for of, rank in ranks for note in rank.notes if note.startswith(DOUBT))
    yield from (f"{of}: {note.removeprefix(DOUBT)}" for of, note in notes)


def answered(seen: Seen, question: str, answer: Callable[[Seen], Found]) -> Explanation:
    try:
        return Explanation(question, *answer(seen))
    except NotKnown as why:
        return Explanation(question, NOT_KNOWN, str(why))
