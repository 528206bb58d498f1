"""The launcher dies, or a rank of it: the trial has failed, in words, and the next one finds nothing in its way.

All of it in one results folder: each of its trials is hit, at a random moment between the start of its launcher and
what is usually its end; the failed ones are run again, and in the long form hit again, before they may end. The
launchers are real; so are the ranks in the second test. In the first they are planted, join MPI where there is one,
and wait.
"""

from __future__ import annotations

import math
import random
import time
from collections import Counter

import eventually
import faulted_studies as studies
import psutil
from injection import Inject, Injection, retried
from ledger import SEED, TIMES
from sweeping import Running, Sweep, SweepOf, each_trial

from scaling_study.records.schema import Record
from scaling_study.settings import CHECKOUT

PLANTED_SECONDS = 0.8
TAKES_SECONDS = {"horovodrun --gloo": 1.4, "horovodrun --mpi": 1.7, "mpirun": 2.0, "torchrun": 3.5, "deepspeed": 6.5}
REAL_SECONDS = 10.0  # from the launcher's start to its end, at the least
GONE_SECONDS = {True: 10.0, False: 5.0}  # ranks that train end by themselves some time, and must not have
ANY_RANK = "a rank"
PASSES = 1 if TIMES == 1 else 4  # how often the same trial is hit


def test_a_launcher_or_rank_that_is_killed_costs_its_own_trial(sweep_of: SweepOf, inject: Inject) -> None:
    wanted = Counter({(launcher, launcher): TIMES for launcher in studies.LAUNCHED})
    ranks_of = studies.LAUNCHED if TIMES > 1 else ("mpirun",)
    wanted.update({(launcher, ANY_RANK): max(1, TIMES // len(studies.LAUNCHED)) for launcher in ranks_of})
    sweep = sweep_of(studies.launched(trials(wanted)), PLANTED_SECONDS=str(PLANTED_SECONDS))
    hit_each(sweep, inject, wanted, TAKES_SECONDS)


def test_the_same_with_ranks_that_train(sweep_of: SweepOf, inject: Inject) -> None:
    chosen = studies.LAUNCHED if TIMES > 1 else ("horovodrun --mpi",)
    wanted = Counter({(launcher, ANY_RANK): 1 + (TIMES > 1) for launcher in chosen})
    if TIMES > 1:
        wanted.update({(launcher, launcher): 2 for launcher in chosen})
    study = studies.launched(trials(wanted), window="min_seconds: 8, max_seconds: 9, ")
    takes = dict.fromkeys(chosen, REAL_SECONDS)
    hit_each(sweep_of(study, checkout=CHECKOUT), inject, wanted, takes, "ranks that train")


def trials(wanted: Counter[tuple[str, str]]) -> dict[str, int]:
    """How many repeats each launcher needs, if each is hit in every pass."""
    hits = {launcher: sum(n for (of, _), n in wanted.items() if of == launcher) for launcher, _ in wanted}
    return {launcher: math.ceil(n / PASSES) for launcher, n in hits.items()}


def hit_each(
    sweep: Sweep, inject: Inject, wanted: Counter[tuple[str, str]], takes: dict[str, float], detail: str = ""
) -> None:
    """Run the sweep and hit its trials until all that is wanted was hit; once more without, and all is right."""
    chance = random.Random(f"{SEED}/{sorted(wanted)}")
    expected, again, hits = sum(trials(wanted).values()), tuple[str, ...](), list[Injection]()
    while +wanted:
        driver, before = sweep.start(*retried(again)), len(hits)
        for running in each_trial(sweep, driver):
            victim = next((v for (of, v), n in wanted.items() if of == running.kind and n > 0), None)
            process = victim and chosen(running, victim, takes[running.kind], chance)
            if not process:
                continue
            wanted[running.kind, victim] -= 1
            with inject(sweep, f"kill -9 of {victim}", "process", detail, running.age()) as hit:
                hits.append(hit)
                hit.runs_again(*again)
                everything = running.processes()
                process.kill()
                hit.all_gone(everything, GONE_SECONDS[sweep.planted])
                hit.expect(sweep.until(lambda id=running.trial: id in sweep.outcomes(), 15), "no record after 15 s")
                hit.all_gone([p for p in running.processes() if running.names(p)])
                hit.kept()
                judge(hit, sweep.outcomes().get(running.trial))
        if len(hits) > before:
            hits[-1].ends(driver, 1, "failed: ", "its log: ")
        again = ("failed",) if len(hits) > before else ("failed", "ok")  # some trial was over before it was hit
    hits[-1].goes_on(expected, "failed")


def judge(hit: Injection, record: Record | None) -> None:
    """It failed, and why is said; or what its launcher's death looked like passes by itself, and it was tried again; or
    all its ranks had reported before, which the record says."""
    if record and record.attempts > 1:
        return
    if record and record.status == "ok" and any(note.startswith("complete; ") for note in record.notes):
        return
    hit.expect(record and record.status == "failed" and record.reason, f"{record}")


def chosen(running: Running, victim: str, takes: float, chance: random.Random) -> psutil.Process | None:
    """What is to be killed, after a random wait; None if it has ended by then."""
    if victim != ANY_RANK:
        process = running.launcher
        time.sleep(chance.uniform(0, 0.9 * takes))
    else:
        ranks = running.ranks(60.0)
        if len(ranks) < 2:
            return None
        process = chance.choice(ranks)
        time.sleep(chance.uniform(0, 0.7 * (takes if takes == REAL_SECONDS else PLANTED_SECONDS)))
    return process if eventually.living(process) else None
