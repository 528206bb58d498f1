"""Which failures are tried again, what an out-of-memory says of larger batches, and how many repeats are added."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaling_study.launch import decisions
from scaling_study.launch.decisions import Limits, failure_kind
from scaling_study.records.results import Summary
from scaling_study.records.schema import IMPLIED, STATUSES, RankError
from scaling_study.stats import launches
from scaling_study.stats.intervals import repeats_for
from scaling_study.study import groups
from scaling_study.study.plan import Planned
from scaling_study.study.study import Measure
from scaling_study.trial import Trial, Window

# --- failures that pass by themselves: the libraries' own words, quoted (test_transient.py provokes them)

LISTEN = (
    "The server socket has failed to listen on any local network address. port: 46617, useIpv6: false, code: -98, "
    "name: EADDRINUSE, message: address already in use"
)
GLOO = "Gloo connectFullMesh failed with [/pytorch/third_party/gloo/gloo/transport/tcp/pair.h:311] Connect timeout"
NCCL = (
    "NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:77, unhandled system error, NCCL version "
    "2.30.7\nncclSystemError: System call or external library call failed or device error.\nLast error:\n"
    "ncclOsSocketStartConnect: connect to 10.0.0.2<43287> failed : Connection refused"
)
TIMED_OUT = "The client socket has timed out after 3000ms while trying to connect to (127.0.0.1, 1)."


def error(type: str, message: str, rank: int = 0) -> RankError:
    return RankError(rank, float(rank), type, message, "", stepping=False)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("port", error("DistNetworkError", LISTEN)),
        ("port", error("OSError", "[Errno 98] Address already in use")),
        ("rendezvous", error("DistNetworkError", TIMED_OUT)),
        ("rendezvous", error("DistStoreError", "Timed out after 4 seconds waiting for clients. 1/2 clients joined.")),
        ("rendezvous", error("RuntimeError", GLOO)),
        ("rendezvous", error("DistBackendError", NCCL)),
    ],
)
def test_a_known_message_passes_unless_a_step_was_made_or_a_rank_measured(kind: str, said: RankError) -> None:
    assert failure_kind([said], False, "") == kind
    assert failure_kind([said], True, "") == ""
    older = RankError(said.rank, said.at, said.type, said.message, "")  # does not say whether a step was made
    for stepped in (replace(said, stepping=True), older):
        assert failure_kind([stepped], False, "") == ""


@pytest.mark.parametrize(
    "said",
    [
        error("ValueError", LISTEN),
        error("DistNetworkError", "Connection reset by peer"),
        error("RuntimeError", "[/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:16042"),
        error("OSError", "[Errno 28] No space left on device"),
        error("OutOfMemoryError", "CUDA out of memory"),
    ],
)
def test_all_else_stands_whatever_the_log_or_another_rank_says(said: RankError) -> None:
    assert failure_kind([said], False, LISTEN) == ""
    assert failure_kind([said, error("RuntimeError", GLOO)], False, "") == ""


def test_peers_of_a_rank_without_its_port_may_complain_before_it() -> None:
    late = error("DistNetworkError", LISTEN, rank=1)
    assert failure_kind([error("DistNetworkError", "failed to recv, got 0 bytes"), late], False, "") == "port"
    assert failure_kind([error("ValueError", "a bug"), late], False, "") == ""


def test_a_log_is_looked_at_only_where_no_rank_spoke() -> None:
    log = "------\nThe PMIx server's listener thread failed to start. We cannot\ncontinue.\n------"
    horovod = "http_store.cc:96] HTTP GET request failed too many times, aborting.\n  what():  HTTP request failed."
    known = {log: "rendezvous", f"Traceback ...\n{LISTEN}\n": "port", horovod: "rendezvous"}
    for text, kind in {**known, "": "", "address already in use": "", "Connection refused": ""}.items():
        assert failure_kind([], False, text) == kind
    assert failure_kind([error("ValueError", "a bug")], False, log) == failure_kind([], True, log) == ""


def test_the_pause_grows_and_then_stays() -> None:
    assert [decisions.back_off_seconds(attempt) for attempt in (1, 2, 4, 5, 10)] == [1.0, 4.0, 60.0, 60.0, 60.0]


# --- larger batches than one that was out of memory

BASE = Trial(framework="horovod", workers=2, launcher="horovodrun", controller="mpi", device="cpu")


def of(batch: int, repeat: int = 1) -> Trial:
    return replace(BASE, batch_per_worker=batch, repeat=repeat)


def summary(trial: Trial, status: str, reason: str = "", speed: float | None = None, launch: str = "") -> Summary:
    return Summary(trial.id, trial.configuration, trial, status, reason, "", 1.0, speed, None, launch)


def seen(*known: tuple[Trial, str]) -> Limits:
    limits = Limits()
    for trial, status in known:
        limits.learn(summary(trial, status, "rank 0: can't allocate memory" if status == "oom" else ""))
    return limits


def test_a_larger_batch_is_implied_with_the_least_that_failed_whatever_came_first() -> None:
    for order in ([64, 32, 128], [32, 64, 128], [128, 64, 32]):
        limits = seen(*((of(batch), "oom") for batch in order))
        assert limits.implied(of(256, repeat=3)) == f"{IMPLIED}batch_per_worker=32 was out of memory ({of(32).id})"


OTHER: dict[str, Any] = {"framework": "single", "find": "max_batch", "window": Window(warmup_steps=1)}


def test_every_other_key_makes_another_family() -> None:
    for key in {f.name for f in fields(Trial)} - {"batch_per_worker", "repeat"}:
        value = OTHER.get(key, "another")
        assert seen((replace(of(32), **{key: value}), "oom")).implied(of(64)) == "", key
        assert seen((of(32), "oom")).implied(replace(of(64), **{key: value})) == "", key


@pytest.mark.parametrize("find", ["parity", "max_batch"])
def test_what_looks_for_something_else_is_never_implied(find: str) -> None:
    assert seen((replace(of(32), find=find), "oom")).implied(replace(of(64), find=find)) == ""


def test_a_trial_that_was_implied_implies_nothing_itself() -> None:
    limits = Limits()
    limits.learn(summary(of(64), "oom", f"{IMPLIED}batch_per_worker=32 was out of memory"))
    assert limits.implied(of(128)) == ""


events = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 3), st.sampled_from(STATUSES)), max_size=8)


@given(events, st.integers(1, 10))
def test_the_rule_in_one_line_whatever_the_order(events: list[tuple[int, int, str]], batch: int) -> None:
    fitted = max((b for b, _, status in events if status == "ok"), default=0)
    expected = any(fitted < b < batch for b, _, status in events if status == "oom")
    for order in (events, events[::-1]):
        limits = seen(*((of(b, repeat), status) for b, repeat, status in order))
        assert bool(limits.implied(of(batch))) == expected


# --- the largest batch that fits


@given(limit=st.integers(0, 200_000), start=st.integers(1, 4096))
def test_the_search_finds_the_limit_to_its_resolution_and_asks_nothing_twice(limit: int, start: int) -> None:
    asked: list[int] = []

    def fits(size: int) -> bool:
        asked.append(size)
        return size <= limit

    found = decisions.largest_batch(fits, start)
    assert len(asked) == len(set(asked)) and len(asked) < 40
    if limit == 0:
        assert found is None
    else:
        assert found is not None and found <= limit
        assert limit - found <= max(1, found // decisions.RESOLUTION)


def test_a_search_among_batches_that_all_fit_ends() -> None:
    assert decisions.largest_batch(lambda size: True, 32) == decisions.MOST


# --- repeats

MEASURE = Measure(warm=True, repeats=3, max_repeats=50, target_interval=0.02)
SINGLE = Trial(model="resnet8", allreduce="none")
HALF = replace(SINGLE, batch_per_worker=64)
DDP = replace(SINGLE, framework="torch_ddp", workers=2, launcher="torchrun", allreduce="fp32")
ALL = [SINGLE, HALF, DDP, replace(DDP, allreduce="fp16"), replace(DDP, batch_per_worker=64)]
DRIFT = (100.0, 130.0, 80.0)  # samples per second: what came over all in three launches
QUIET = [(1.0, 1.0002, 0.9999)] * len(ALL)  # beside that
DRIFTING = min(50, repeats_for([100.0, 130.02, 79.992], 0.02))


def counts(
    speeds: Sequence[Sequence[float]],
    baseline: Sequence[Trial] = (SINGLE, HALF),
    warm: bool = True,
    measure: Measure = MEASURE,
    target: float | None = None,
) -> list[int]:
    """Repeats of each of ALL, in all; with a `target`, those that would bring them there."""
    planned = [Planned(groups.warmed(trial, measure) if warm else trial, measure) for trial in ALL]
    place = {each.trial.configuration: at for at, each in enumerate(planned)}

    def known(of: Planned, repeat: int) -> Summary | None:
        trial, own = of.at(repeat).trial, speeds[place[of.trial.configuration]]
        if repeat > len(own):
            return None
        group = f"{repeat}/0-{trial.workers}-{trial.framework}" if warm else ""
        return summary(trial, "ok", speed=own[repeat - 1] * DRIFT[repeat - 1] or None, launch=group)

    names = {trial: each.trial.configuration for trial, each in zip(ALL, planned, strict=True)}
    against = [names[trial] for trial in baseline]
    if target is None:
        found = decisions.total_repeats(planned, known, against, "weak")
    else:
        found = decisions.wanted_repeats(planned, known, against, "weak", target)
    return [found[names[trial]] for trial in ALL]


def test_a_machine_that_drifts_asks_for_no_more_launches_but_for_repeats_alone() -> None:
    assert counts(QUIET) == [3] * len(ALL)
    assert counts(QUIET, warm=False) == [DRIFTING] * len(ALL)
    assert counts(QUIET, baseline=())[0] == 50, "nor is there anything to hold them against"


def test_a_noisy_one_has_more_and_what_it_is_held_against_too() -> None:
    noisy = [*QUIET[:4], (1.0, 1.02, 0.96)]
    found = counts(noisy)
    assert found[4] > 3 and found[1] == found[4]
    assert all(count <= 4 for count in counts(noisy, measure=MEASURE.model_copy(update={"max_repeats": 4})))


def test_what_narrower_intervals_would_cost_is_known_beyond_max_repeats() -> None:
    """As --dry-run says it, of ratios, which a drift leaves alone."""
    unlike = [(1.0, 1.003, 0.996), (1.0, 1.01, 0.99), (1.0, 0.995, 1.004), (1.0, 0.99, 1.02), (1.0, 1.02, 0.99)]
    narrow, wide = (counts(unlike, target=target) for target in (0.001, 0.05))
    assert min(narrow) > 50 and max(wide) < 10 and max(narrow) > 20 * max(wide)
    assert max(wide) < min(counts(unlike, warm=False, target=0.05)), "alone the drift counts"


def test_only_what_has_its_batch_is_held_against_the_baseline() -> None:
    """The others' own speeds count then, over which the machine's drift came."""
    assert counts(QUIET, baseline=(SINGLE,)) == [3, DRIFTING, 3, 3, DRIFTING]


def test_what_failed_or_is_not_finished_has_no_more() -> None:
    assert counts([*QUIET[:4], (1.0, 0.0, 1.1)])[4] == counts([*QUIET[:4], (1.0,)])[4] == 3


def test_launches_are_as_many_as_bring_the_interval_to_its_target() -> None:
    variance, freedom = 0.03**2, 20.0
    count = launches.needed(variance, freedom, 0.02)
    assert count == math.ceil(variance * (2.086 / math.log(1.02)) ** 2) == 10
    assert launches.needed(variance, 0.0, 0.02) == 0


def test_a_ratio_whose_sign_is_sure_needs_no_more_launches_also_of_another_batch_or_in_turns() -> None:
    by_sign = MEASURE.model_copy(update={"settled_by": "sign", "target_interval": 0.001})
    noisy = (1.0, 1.003, 0.998)
    far, near = ([noisy, *[tuple(by * each for each in QUIET[0])] * 4] for by in (1.5, 1.001))
    alone = [tuple(each / drift for each, drift in zip(speeds, DRIFT, strict=True)) for speeds in far]
    assert counts(far, baseline=(SINGLE,), measure=by_sign) == [3] * 5
    assert counts(alone, baseline=(SINGLE,), measure=by_sign, warm=False) == [3] * 5
    assert min(counts(near, baseline=(SINGLE,), measure=by_sign)) > 3
    assert counts(far, baseline=(SINGLE,), measure=by_sign.model_copy(update={"settled_by": "interval"}))[0] > 3
