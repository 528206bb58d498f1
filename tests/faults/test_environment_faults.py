"""What can be wrong with a host, a user's account and a results folder: memory, clock, names, limits, rights, disks."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import control_group
import copied
import faulted_studies as studies
import pytest
from injection import Inject, Injection
from namespace import AS_NOBODY, Namespace, fill, own
from sweeping import Sweep, SweepOf

from scaling_study.settings import CHECKOUT

MEMORY_BYTES = 1536 << 20  # of it torch takes half
FITS, DOES_NOT, NEITHER = 4, 16_384, 32_768  # batches of resnet8
ALL = tuple(studies.LAUNCHED)
BOTH_KINDS = ("horovodrun --gloo", "horovodrun --mpi", "mpirun", "torchrun")  # of names, addresses and shared memory
Check = Callable[..., None]
SHORT = "min_seconds: 0, max_steps: 10, "  # of ranks that train


@pytest.fixture
def goes_well(inject: Inject) -> Callable[..., None]:
    """goes_well(sweep, "no home", trials=2): the sweep runs as if nothing were wrong, and so does the next."""

    def check(sweep: Sweep, fault: str, trials: int, also: Callable[[Injection], None] | None = None, **how: object):
        with inject(sweep, fault, "environment") as hit:
            driver = sweep.run(**how)
            hit.ends(driver, 0)
            if also:
                also(hit)
            hit.goes_on(trials)

    return check


@pytest.fixture
def well_or_said(inject: Inject) -> Callable[..., None]:
    """well_or_said(sweep, "names resolved oddly", 5, mend): each trial is ok, or its reason names what was in the way;
    all are ok in the next run, once it is mended."""

    def check(sweep: Sweep, fault: str, trials: int, mend: Callable[[], object]) -> None:
        with inject(sweep, fault, "environment") as hit:
            driver = sweep.run()
            hit.said(driver)
            bad = [record for record in sweep.outcomes().values() if record.status != "ok"]
            hit.expect(driver.code == (1 if bad else 0), f"exit code {driver.code} with {len(bad)} bad trials")
            for record in bad:
                vague = not record.reason or "no word from any rank" in record.reason or record.status == "timeout"
                hit.expect(not vague, f"{record.id}: {record.status} {record.reason!r} says too little")
            hit.row.detail = "; ".join(f"{r.id.split('-')[0]}: {r.status} {r.reason}" for r in bad)
            hit.all_gone()
            mend()
            hit.goes_on(trials, "failed", "timeout", "oom")

    return check


@pytest.mark.long
def test_memory_that_runs_out_is_oom_and_speaks_for_larger_batches(sweep_of: SweepOf, inject: Inject) -> None:
    """Really reached: the kernel kills the rank. Ranks that train; --no-prune runs what was implied."""
    sweep = sweep_of(studies.batches([FITS, DOES_NOT, NEITHER]), checkout=CHECKOUT)
    with inject(sweep, "out of memory (host)", "environment") as hit:
        try:
            with control_group.limited(MEMORY_BYTES) as inside:
                sweep.run("--where", f"batch_per_worker={DOES_NOT}", through=inside)  # before the larger one
                driver = sweep.run(through=inside)
                found = {r.trial.batch_per_worker: (r.status, r.reason[:7]) for r in sweep.outcomes().values()}
                hit.expect(found[FITS] == ("ok", "") and found[DOES_NOT][0] == "oom", f"{found}")
                hit.expect(found[NEITHER] == ("oom", "implied") and driver.code == 1, f"{found}, {driver.code}")
                hit.said(driver, "oom: ", "the kernel killed a process for memory")
                hit.all_gone()
                sweep.run("--no-prune", through=inside)
                (run,) = [r for r in sweep.outcomes().values() if r.trial.batch_per_worker == NEITHER]
                hit.expect(run.status == "oom" and "implied" not in run.reason, f"--no-prune: {run.reason}")
                hit.all_gone()
        except control_group.NotHere as why:
            hit.row.skipped = str(why)
            pytest.skip(str(why))


@pytest.mark.long
def test_memory_of_a_gpu_that_runs_out_is_oom(sweep_of: SweepOf, inject: Inject, a_gpu: None) -> None:
    sweep = sweep_of(studies.batches([FITS, 1 << 22, 1 << 23]), checkout=CHECKOUT)
    with inject(sweep, "out of memory (GPU)", "environment") as hit:
        driver = sweep.run()
        found = {r.trial.batch_per_worker: (r.status, r.reason[:7]) for r in sweep.outcomes().values()}
        hit.expect(found[FITS] == ("ok", ""), f"{found}")
        hit.expect(found[1 << 22][0] == "oom" and found[1 << 23] == ("oom", "implied"), f"{found}")
        hit.said(driver, "oom: ")
        hit.all_gone()


@pytest.mark.long
def test_a_clock_that_is_stepped_back_changes_no_outcome(sweep_of: SweepOf, inject: Inject, shim: Path) -> None:
    """An hour, during a trial: what is measured is taken from the monotonic clock."""
    sweep = sweep_of(studies.quick(2, 3), PLANTED_SECONDS="0.5", LD_PRELOAD=str(shim))
    stepped = sweep.folder / "stepped"
    sweep.environment["CLOCK_FILE"] = str(stepped)
    driver = sweep.started_until(2)
    with inject(sweep, "clock stepped backwards", "environment") as hit:
        stepped.touch()
        hit.ends(driver, 0)
        for record in sweep.outcomes().values():
            hit.expect(0 < (record.total_seconds or 0) < 30, f"{record.id}: {record.total_seconds} s in all")
            hit.expect((record.launch_seconds or 0) >= 0, f"{record.id}: launched in {record.launch_seconds} s")
        hit.kept()
        hit.goes_on(6)


@pytest.mark.long
def test_ports_that_are_taken_are_not_stumbled_over(sweep_of: SweepOf, goes_well: Check) -> None:
    """The one launcher that is told its port, with ranks that train: their store really listens there."""
    sweep = sweep_of(studies.launched({"deepspeed": 1}, window=SHORT), checkout=CHECKOUT)
    planned = json.loads(sweep.run("--dry-run", "--json").said())["trials"][0]["command"].split()
    port = int(planned[planned.index("--master_port") + 1])

    def noted(hit: Injection) -> None:
        notes = " ".join(note for record in sweep.outcomes().values() for note in record.notes)
        hit.expect(f"port {port} is in use by process {os.getpid()}" in notes, f"its notes: {notes}")

    with socket.create_server(("", port)):
        goes_well(sweep, "port taken", 1, noted)


@pytest.mark.long
def test_a_host_whose_names_lead_astray(sweep_of: SweepOf, well_or_said: Check, namespace: Namespace) -> None:
    """Its own name is an address that nobody has, and localhost is the one of IPv6 only. Ranks that train."""
    sweep = sweep_of(studies.launched(dict.fromkeys(ALL, 1), window=SHORT), checkout=CHECKOUT, namespace=namespace)
    hosts = sweep.folder / "hosts"
    hosts.write_text(f"192.0.2.1 {socket.gethostname()}\n::1 localhost\n")
    namespace.mount("--bind", str(hosts), "/etc/hosts")
    well_or_said(sweep, "names resolved oddly", len(ALL), lambda: namespace.do("umount", "/etc/hosts"))


@pytest.mark.long
def test_no_room_for_shared_memory(sweep_of: SweepOf, well_or_said: Check, namespace: Namespace) -> None:
    """64 KiB, as in a careless container; ranks that train."""
    kinds = dict.fromkeys(("horovodrun --mpi", "torchrun"), 1)
    sweep = sweep_of(studies.launched(kinds, window=SHORT), checkout=CHECKOUT, namespace=namespace)
    namespace.memory_disk(Path("/dev/shm"), "64k")
    well_or_said(sweep, "no room in /dev/shm", len(kinds), lambda: namespace.do("umount", "/dev/shm"))


@pytest.mark.parametrize(("limit", "value"), [("nofile", 64), ("nproc", 40)])
@pytest.mark.long
def test_low_limits(limit: str, value: int, sweep_of: SweepOf, well_or_said: Check, nobody: Namespace) -> None:
    """As another user, since root has no limit of processes."""
    sweep = sweep_of(studies.launched({"mpirun": 1, "torchrun": 1}), namespace=nobody)
    own(sweep.folder, sweep.temporary)
    sweep.through = ("prlimit", f"--{limit}={value}", *AS_NOBODY)
    well_or_said(sweep, f"ulimit of {value} {limit}", 2, lambda: setattr(sweep, "through", AS_NOBODY))


@pytest.mark.long
def test_no_home(sweep_of: SweepOf, goes_well: Check) -> None:
    sweep = sweep_of(studies.launched(dict.fromkeys(BOTH_KINDS, 1)))
    goes_well(sweep, "HOME not set", len(BOTH_KINDS), without=("HOME",))


@pytest.mark.long
def test_a_home_that_is_not_there(sweep_of: SweepOf, goes_well: Check, nobody: Namespace) -> None:
    """As a service's account has it: nobody may make it either."""
    sweep = sweep_of(studies.launched(dict.fromkeys(BOTH_KINDS, 1)), namespace=nobody, HOME="/nonexistent")
    own(sweep.folder, sweep.temporary)
    sweep.through = AS_NOBODY
    goes_well(sweep, "HOME is no folder", len(BOTH_KINDS))


@pytest.mark.long
def test_locale_c(sweep_of: SweepOf, goes_well: Check) -> None:
    """A study whose file and folders are written in letters that this locale does not have."""
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    text = studies.quick(1, 2) + "# Größe: 2 % von 10 µs — 日本語\n"
    goes_well(sweep := sweep_of(text, file="étude.yaml", results="résultats", **plain), "locale C", 2)
    assert (sweep.results / "study.yaml").read_text(encoding="utf-8") == text


@pytest.mark.long
def test_paths_with_spaces_and_other_letters(sweep_of: SweepOf, goes_well: Check, ground: Path) -> None:
    """Of checkout, study and results, under every launcher: some of them make a shell's line of it."""
    checkout = copied.planted(ground / "le projet d'été; $(touch pwned) & 日本")
    names = {"file": "une étude 'à moi'.yaml", "results": "mes résultats $HOME"}
    sweep = sweep_of(studies.launched(dict.fromkeys(ALL, 1)), checkout=checkout, **names)
    goes_well(sweep, "paths with spaces and other letters", len(ALL))
    assert not list(ground.rglob("pwned")) and not Path("pwned").exists(), "a path was run as a command"
    shutil.rmtree(checkout)


@pytest.mark.long
def test_code_that_the_user_may_not_write(
    sweep_of: SweepOf, goes_well: Check, nobody: Namespace, checkout: Path
) -> None:
    def sources() -> list[Path]:
        return sorted(path for path in checkout.rglob("*") if "__pycache__" not in path.relative_to(checkout).parts)

    sweep = sweep_of(studies.launched({"horovodrun --gloo": 1, "torchrun": 1}), namespace=nobody)
    sweep.environment["HOME"] = str(sweep.folder)
    own(sweep.folder, sweep.temporary)
    sweep.through = AS_NOBODY
    before = sources()
    goes_well(sweep, "no right to write the code", 2)
    assert sources() == before


# --- the results folder: full, read-only, slow, gone


def test_a_full_disk_costs_at_most_the_running_trial(sweep_of: SweepOf, inject: Inject, namespace: Namespace) -> None:
    sweep = sweep_of(studies.quick(2, 3), namespace=namespace, PLANTED_SECONDS="1.0")
    sweep.into.mkdir()
    namespace.memory_disk(sweep.into, "24m")
    driver = sweep.started_until(2)
    with inject(sweep, "disk full", "environment") as hit:
        ballast = fill(sweep.seen(sweep.into))
        hit.ended_by_a_full_disk(driver)
        again = sweep.run()
        hit.ends(again, 1, "no space left on the disk", "free disk space")
        hit.kept()
        ballast.unlink()
        hit.goes_on(6)


@pytest.mark.long
def test_read_only_results_are_said(sweep_of: SweepOf, inject: Inject, namespace: Namespace) -> None:
    sweep = sweep_of(studies.quick(2, 1), namespace=namespace)
    assert sweep.run("--max-trials", "1").code == 0
    with inject(sweep, "results read-only (mounted so)", "environment") as hit:
        namespace.mount("--bind", str(sweep.into), str(sweep.into))
        namespace.mount("-o", "remount,bind,ro", str(sweep.into))
        refused(hit, sweep, "cannot write results there: Read-only file system", "choose another with --results")
        namespace.do("umount", str(sweep.into))
        hit.goes_on(2)


@pytest.mark.long
def test_results_of_another_user_are_said(sweep_of: SweepOf, inject: Inject, nobody: Namespace) -> None:
    sweep = sweep_of(studies.quick(2, 1), namespace=nobody)
    assert sweep.run("--max-trials", "1").code == 0
    own(sweep.temporary, sweep.starts_log, sweep.folder)
    sweep.through = AS_NOBODY
    with inject(sweep, "results of another user (chmod)", "environment") as hit:
        refused(hit, sweep, "cannot write results there: Permission denied", "choose another with --results")
        own(sweep.into, *sweep.into.rglob("*"))
        hit.goes_on(2)


@pytest.mark.long
def test_slow_results_are_waited_for_and_never_half_there(sweep_of: SweepOf, inject: Inject, shim: Path) -> None:
    """Half a second for each write, fsync and rename; the driver is killed while a record is being written."""
    slow = {"LD_PRELOAD": str(shim), "SLOW_SECONDS": "0.3"}
    sweep = sweep_of(studies.quick(1, 2), PLANTED_SECONDS="0.2", **slow)
    sweep.environment["SLOW_FOLDER"] = str(sweep.into)
    driver = sweep.start()
    with inject(sweep, "results on a slow file system", "environment") as hit:
        hit.expect(sweep.until(lambda: half_written(sweep), driver=driver), f"no record was begun: {driver.said()}")
        driver.send(signal.SIGKILL)
        driver.wait(120)
        hit.all_gone()
        hit.kept()
        hit.goes_on(2)


def half_written(sweep: Sweep) -> bool:
    """A record on its way: ranks have reported, and what will be record.json is not empty any more."""
    for folder in sweep.results.glob("trials/[!.]*"):
        for half in folder.glob(".record.json*"):
            try:
                if (folder / "ranks").exists() and half.read_bytes()[:1] == b"{":
                    return True
            except OSError:  # renamed meanwhile
                pass
    return False


@pytest.mark.long
def test_results_that_vanish_are_said_and_found_again(sweep_of: SweepOf, inject: Inject) -> None:
    sweep = sweep_of(studies.quick(2, 3), PLANTED_SECONDS="0.6")
    driver = sweep.started_until(2)
    with inject(sweep, "results vanish during a trial", "environment") as hit:
        there, elsewhere = sweep.into / sweep.name, sweep.folder / "elsewhere"
        os.rename(there, elsewhere)
        hit.expect(driver.wait(120) == 1, f"exit code {driver.code} instead of 1")
        hit.all_gone()
        hit.said(driver, "is gone", "finished trials are kept; the same command resumes once it is back")
        hit.expect(not list(there.rglob("record.json")), "records in a folder that nobody knows")
        if there.exists():  # what the running rank made anew
            os.rename(there, sweep.folder / "made anew")
        os.rename(elsewhere, there)
        hit.kept()
        hit.goes_on(6)


def refused(hit: Injection, sweep: Sweep, *words: str) -> None:
    """The sweep says why it does not start, in one line, and touches nothing."""
    driver = sweep.run(seconds=60)
    hit.ends(driver, 1, *words)
    hit.expect(len(driver.said().strip().splitlines()) == 1, "more than one line")
    hit.all_gone()
    hit.kept()
