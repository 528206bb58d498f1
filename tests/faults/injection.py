"""One fault into a running sweep, and what must hold after it.

    with inject(sweep, "kill -9 of the driver") as hit:                # what is finished is noted here,
        os.kill(driver.pid, signal.SIGKILL)                            # the fault,
        hit.all_gone()                                                 # nobody lives 10 s later,
        hit.kept()                                                     # nothing finished was lost;
        hit.expect(driver.code == -9, "...")                           # its own expectations;
        hit.goes_on(...)                                               # the next command ends with everything right

What does not hold is noted in the ledger and fails the test at its end: twenty injections are all made and counted.
"""

from __future__ import annotations

import contextlib
import csv
import json
import random
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import eventually
import psutil
import survivors
from ledger import SEED, Ledger, Row
from planted_rank import STEP_SECONDS
from sweeping import Driver, Sweep

from scaling_study.records import store

WITHIN_SECONDS = 10.0
SHARED_MEMORY = Path("/dev/shm")


class Injection:
    """Notes what was finished before the fault; each check adds what does not hold to its row."""

    def __init__(self, sweep: Sweep, row: Row) -> None:
        self.sweep, self.row = sweep, row
        self.before, self.starts = sweep.finished(), sweep.starts()

    def expect(self, holds: object, otherwise: str) -> bool:
        """A wrong outcome unless it holds."""
        if not holds:
            self.row.wrong.append(otherwise)
        return bool(holds)

    def all_gone(self, processes: Sequence[psutil.Process] | None = None, within: float = WITHIN_SECONDS) -> None:
        """No process of the sweep (or none of these) lives so long after now; what does is ended, for what follows."""
        start = time.monotonic()
        deadline = start + within
        alive = self.sweep.processes() if processes is None else list(processes)
        while alive and time.monotonic() < deadline:
            alive = eventually.gone(alive, deadline - time.monotonic()) or (
                self.sweep.processes() if processes is None else []  # others may have been forked meanwhile
            )
        self.row.ended_seconds = max(self.row.ended_seconds or 0.0, time.monotonic() - start)
        self.row.orphans += [survivors.described(process) for process in alive]
        survivors.end(alive)
        self.sweep.hold.unlink(missing_ok=True)

    def kept(self) -> None:
        """Every record that was whole is what it was, and its trial was not started again."""
        now, starts = self.sweep.finished(), self.sweep.starts()
        self.row.lost += [id for id, said in self.before.items() if now.get(id) != said and id not in self.row.lost]
        again = [id for id in self.before if starts[id] > self.starts[id]]
        self.row.repeated += [id for id in again if id not in self.row.repeated]
        self.before, self.starts = now, starts

    def runs_again(self, *statuses: str) -> None:
        """The next command is told to: records of these statuses are no longer expected to stay."""
        now = self.sweep.finished()
        self.before = {id: said for id, said in now.items() if json.loads(said)["status"] not in statuses}
        self.starts = self.sweep.starts()

    def nothing_outside(self) -> None:
        """No temporary file and no segment of shared memory; where they cannot be told from others', not looked for."""
        self.row.leftovers += [str(path) for path in self.sweep.temporary.iterdir()]
        if self.sweep.namespace:
            self.row.leftovers += [str(path) for path in self.sweep.seen(SHARED_MEMORY).iterdir()]

    def nothing_half_done(self) -> None:
        """No temporary file among the results, and nothing set aside."""
        hidden = [path for path in self.sweep.results.rglob(".*") if path.is_file() and path.name != ".driver"]
        self.row.leftovers += [str(path) for path in (*hidden, *self.sweep.results.glob("trials/.*"))]

    def ended_by_a_full_disk(self, driver: Driver) -> None:
        """The driver says so and ends; nothing finished was lost, and no failure is recorded that is the disk's."""
        resumes = "trials are kept: free disk space, then the same command resumes"
        self.ends(driver, 1, "no space left on the disk", resumes, seconds=180)
        self.all_gone()
        self.kept()
        statuses = {record.status for record in self.sweep.outcomes().values()}
        self.expect(statuses == {"ok"}, f"a failure was recorded that is none: {statuses}")

    def goes_on(self, trials: int, *retry: str) -> None:
        """The same command again ends with exit code 0 and so many trials, each right; it believes no half record.

        `retry`: statuses that it is told to run again.
        """
        if retry:
            self.runs_again(*retry)
        self.ends(self.sweep.run(*retried(retry)), 0)
        self.all_gone()
        self.kept()
        self.right(trials)
        self.nothing_outside()
        self.nothing_half_done()

    def right(self, trials: int) -> None:
        """Every trial has a whole record with what the planted rank measured."""
        found = {}
        for path in self.sweep.results.glob("trials/[!.]*/record.json"):
            try:
                found[path.parent.name] = store.read_record(path)
            except store.UnreadableRecord as error:
                self.row.half_written.append(str(error))
        self.expect(len(found) == trials, f"{len(found)} records instead of {trials}")
        for id, record in found.items():
            self.expect(record.id == id and record.status == "ok", f"{id}: {record.status} {record.reason}")
            if self.sweep.planted and any(rank.step_seconds != STEP_SECONDS for rank in record.ranks):
                self.row.half_written.append(f"{id}: not what its ranks have measured")
        table = self.sweep.results / "results.csv"
        rows = list(csv.DictReader(table.open(encoding="utf-8", newline=""))) if table.exists() else []
        self.expect(len(rows) == trials, f"results.csv has {len(rows)} rows for {trials} trials")

    def ends(self, driver: Driver, code: int, *words: str, seconds: float = 120) -> None:
        """The driver ends with this exit code, and has said these words."""
        self.expect(driver.wait(seconds) == code, f"exit code {driver.code} instead of {code}: {driver.said()[-300:]}")
        self.said(driver, *words)

    def said(self, driver: Driver, *words: str) -> None:
        """The message names cause and remedy, and is no traceback."""
        text = driver.said()
        for word in words:
            self.expect(word in text, f"not said: {word!r}; said: {text[-300:]!r}")
        self.expect("Traceback" not in text, f"a traceback: {text[-600:]!r}")


def retried(statuses: Sequence[str]) -> tuple[str, ...]:
    """The option by which these are run again; none for none."""
    return ("--retry", ",".join(statuses)) if statuses else ()


@contextlib.contextmanager
def injection(
    ledger: Ledger, sweep: Sweep, fault: str, family: str = "process", detail: str = "", moment: float | None = None
) -> Iterator[Injection]:
    """An Injection whose row is in the ledger whatever happens, and whose processes are all ended afterwards.

    A process fault finds ranks that do not end by themselves until all_gone has looked.
    """
    row = Row(fault, family, detail, moment, SEED)
    ledger.rows.append(row)
    if family == "process":
        sweep.hold.touch()
    try:
        yield Injection(sweep, row)
    except BaseException as error:
        row.wrong.append(f"{type(error).__name__}: {error}"[:300])
        raise
    finally:
        sweep.hold.unlink(missing_ok=True)
        if row.faults:
            survivors.end(sweep.processes())


Inject = Callable[..., contextlib.AbstractContextManager[Injection]]  # injection, with the ledger of all tests


def moments(count: int, low: float, high: float, name: str) -> list[float]:
    """So many random moments between two, spread out: one in each of `count` equal parts, in random order."""
    chance = random.Random(f"{SEED}/{name}")
    width = (high - low) / count
    chosen = [low + (part + chance.random()) * width for part in range(count)]
    chance.shuffle(chosen)
    return chosen
