"""The loop with scripts that behave and scripts that do not, all of them really run."""

from __future__ import annotations

import dataclasses
import io
import math
import os
import signal
import threading
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from eventually import gone, until
from planted_sweeps import MACHINE, Seen, run
from rich.console import Console

import analysis
from scaling_study import sweep
from scaling_study.commands import dry_run, progress
from scaling_study.commands import run as command
from scaling_study.errors import HostError
from scaling_study.processes import process
from scaling_study.records import pack, results, schema, store
from scaling_study.records.schema import Record
from scaling_study.study.machine_file import MachineFile
from scaling_study.study.plan import Plan
from scaling_study.study.support import Cluster
from scaling_study.trial import Trial


def outcome_of(plan: Plan, tmp_path: Path) -> Record:
    seen, _ = run(plan, tmp_path / "results")
    (ended,) = seen.ended
    record = store.read_trial(tmp_path / "results" / "trials" / ended.id)
    assert results.summarize(record) == ended
    return record


def test_a_good_trial_is_recorded_with_all_that_reproduces_it(plan_for, tmp_path):
    record = outcome_of(plan_for("take_a_second"), tmp_path)
    assert (record.status, record.exit_code, record.reason) == ("ok", 0, "")
    folder = tmp_path / "results" / "trials" / record.id
    assert record.trial.batch_per_worker == 32
    assert not {"begun.json", "trial.json", "command.txt"} & {path.name for path in folder.iterdir()}
    assert results.command_of(tmp_path / "results", record.id[:-1]) == record.command
    assert "take_a_second.py --model resnet18 --batch-per-worker 32" in record.command
    assert record.machine["fingerprint"] == MACHINE.fingerprint
    assert schema.throughput(record) == pytest.approx(320.0)


@pytest.mark.slow
@pytest.mark.usefixtures("forked_starts")
@pytest.mark.parametrize("script", [pytest.param("fit_forty", marks=pytest.mark.long), "crash"])
def test_the_largest_batch_is_searched_by_really_running_out_of_memory(plan_for, tmp_path, script):
    """A failure of another kind ends the search."""
    plan = plan_for(script)
    planned = plan.configurations[0]
    looking = dataclasses.replace(planned, trial=dataclasses.replace(planned.trial, find="max_batch"))
    record = outcome_of(dataclasses.replace(plan, configurations=(looking,)), tmp_path)
    if script == "crash":
        assert (record.status, record.reason, record.found) == ("failed", "rank 0: the planted bug", {})
        assert "ValueError: the planted bug" in record.error and record.ranks == []
        return
    tries = {32: "ok", 64: "oom", 48: "oom", 40: "ok", 44: "oom", 42: "oom", 41: "oom"}
    assert record.found == {"max_batch": 40, "tries": {str(batch): status for batch, status in tries.items()}}
    assert (record.status, record.ranks[0].samples_per_step) == ("ok", 40)
    assert record.total_seconds > 3 * (record.launch_seconds or math.inf), "all seven starts count"


@pytest.mark.slow
def test_a_hang_is_a_time_out_and_leaves_nothing_behind(plan_for, tmp_path):
    record = outcome_of(plan_for("hang", timeout_seconds=2.0), tmp_path)
    assert (record.status, record.reason) == ("timeout", "not finished after 2 s")
    grandchild = int((tmp_path / "results" / "trials" / record.id / "log.txt").read_text())
    assert not gone([grandchild])


def test_unsupported_is_recorded_once_and_starts_nothing(plan_for, tmp_path):
    plan = plan_for("take_a_second", unsupported="no such device", repeats=3, max_repeats=3)
    record = outcome_of(plan, tmp_path)
    assert (record.status, record.reason, record.total_seconds) == ("unsupported", "no such device", None)


def test_a_second_run_runs_nothing_again_but_the_status_that_it_retries(plan_for, tmp_path):
    plan = plan_for("take_a_second", "say_nothing", repeats=2, max_repeats=2)
    first, _ = run(plan, tmp_path)
    again, _ = run(plan, tmp_path)
    assert len(first.started) == 4 and again.started == [] and sorted(again.kept) == sorted(first.started)
    retried, _ = run(plan, tmp_path, retry=frozenset({"failed"}))
    assert [id.split("-")[0] for id in retried.started] == ["say_nothing"] * 2


def test_a_retry_of_what_cannot_run_here_keeps_its_record(plan_for, tmp_path):
    """Such as after `--retry ok` in an environment without the framework."""
    first, _ = run(plan_for("take_a_second"), tmp_path)
    seen, job = run(plan_for("take_a_second", unsupported="not installed"), tmp_path, retry=frozenset({"ok"}))
    assert seen.started == [] and seen.kept == first.started
    assert [known.status for known in job.records.values()] == ["ok"]


def test_where_and_max_trials_choose(plan_for, tmp_path):
    plan = plan_for("take_a_second", "crash", repeats=3, max_repeats=3)
    seen, _ = run(plan, tmp_path, where={"framework": "take_a_second"}, max_trials=2)
    assert [r.trial.framework for r in seen.ended] == ["take_a_second"] * 2
    rest, _ = run(plan, tmp_path, where={"framework": "take_a_second"})
    assert len(rest.started) == 1 and len(rest.kept) == 2


def test_an_unfinished_trial_is_run_again_from_the_start(plan_for, tmp_path):
    plan = plan_for("take_a_second")
    (planned,) = plan.trials()
    half = tmp_path / "trials" / planned.trial.id
    (half / "ranks").mkdir(parents=True)
    (half / "ranks" / "rank-0.json").write_text('{"rank": 0')
    (half / "record.json").write_text('{"schema": 1, "status": "ok"')
    seen, _ = run(plan, tmp_path)
    assert [r.status for r in seen.ended] == ["ok"]


@pytest.mark.slow
def test_interruption_keeps_what_is_finished_and_leaves_the_running_trial_open(plan_for, tmp_path, monkeypatch):
    monkeypatch.setenv("SLEEP_SECONDS", "2")
    plan = plan_for("take_a_second", repeats=3, max_repeats=3)

    def once_it_runs(log):
        until(log.exists)
        os.kill(os.getpid(), signal.SIGINT)

    class Interrupting(Seen):
        def starts(self, planned):
            super().starts(planned)
            if len(self.started) == 2:
                log = tmp_path / "trials" / planned.trial.id / "log.txt"
                threading.Thread(target=once_it_runs, args=[log], daemon=True).start()

    seen, job = Interrupting(), sweep.Run(plan, tmp_path)
    job.open()
    with process.Interruption() as interruption:
        job.run(seen, interruption)
    assert len(seen.ended) == 1 and len(seen.started) == 2
    monkeypatch.setenv("SLEEP_SECONDS", "0")
    again, _ = run(plan, tmp_path)
    assert len(again.kept) == 1 and len(again.ended) == 2


def plant(job: sweep.Run, plan: Plan, *step_seconds: float) -> None:
    """Finished repeats of the first configuration, with these step times."""
    planned = plan.configurations[0]
    known = next(iter(results.open_results(job.folder, plan)[0].values()))
    for repeat, seconds in enumerate(step_seconds, start=1):
        trial = dataclasses.replace(planned.trial, repeat=repeat)
        job.records[trial.id] = dataclasses.replace(known, id=trial.id, samples_per_second=32 / seconds)


@pytest.mark.parametrize(
    ("step_seconds", "total"),
    [
        ((0.1, 0.1, 0.1), 3),
        ((0.1, 0.101, 0.099), 5),  # (4.303 x 1.0 % / 2 %)^2 = 4.6
        ((0.1, 0.2, 0.3), 9),  # never more than max_repeats
    ],
)
def test_how_many_more_is_decided_once_from_the_spread_of_the_planned_ones(plan_for, tmp_path, step_seconds, total):
    plan = plan_for("take_a_second", repeats=3, max_repeats=9)
    run(plan, tmp_path, max_trials=1)
    job = sweep.Run(plan, tmp_path)
    plant(job, plan, *step_seconds)
    assert job.totals() == {plan.configurations[0].trial.configuration: total}
    every = [planned.trial.repeat for planned in job.trials()]
    assert every == list(range(1, total + 1))
    first = sweep.Run(plan, tmp_path, where={"repeat": 1})  # as bench asks for its first launch, of a second start too
    first.records = job.records
    assert [planned.trial.repeat for planned in first.trials()] == [1]
    plant(job, plan, *step_seconds, 0.5, 0.1)  # what comes later does not change the decision
    assert job.totals() == {plan.configurations[0].trial.configuration: total}


def test_a_dry_run_says_what_narrower_intervals_would_cost(plan_for, tmp_path):
    plan, screen = plan_for("take_a_second", repeats=3, max_repeats=9), io.StringIO()
    job = sweep.Run(plan, tmp_path)
    dry_run.show(Console(file=screen, width=200), job, plan.trials())
    assert "Margins" not in screen.getvalue()
    run(plan, tmp_path, max_trials=1)
    plant(job, plan, 0.1, 0.101, 0.099)
    dry_run.show(Console(file=screen, width=200), job, plan.trials())
    [said] = [line for line in screen.getvalue().splitlines() if line.startswith("Margins")]
    facts = ("of 1 configurations: ±5%: at most 3 launches", "±2%: at most 5 launches", "±1%: at most 19 launches")
    assert not [fact for fact in facts if fact not in said]


def test_extra_repeats_are_run(plan_for, tmp_path):
    plan = plan_for("take_a_second", repeats=3, max_repeats=6)
    job = sweep.Run(plan, tmp_path)
    run(plan, tmp_path, max_trials=1)
    plant(job, plan, 0.1, 0.2, 0.3)
    seen = Seen()
    with process.Interruption() as interruption:
        job.run(seen, interruption)
    assert [r.trial.repeat for r in seen.ended] == [4, 5, 6]
    assert [planned.trial.repeat for planned in seen.expected] == [4, 5, 6], "the time left has them"


def test_a_retry_during_which_the_driver_is_killed_loses_nothing(plan_for, tmp_path):
    plan = plan_for("take_a_second")
    first, _ = run(plan, tmp_path)
    folder = tmp_path / "trials" / first.started[0]
    results.set_aside(folder)  # what a killed driver leaves: the old one aside, the new one half done
    folder.mkdir()
    (folder / "log.txt").write_text("half")
    again, _ = run(plan, tmp_path)
    assert again.kept == first.started and again.started == []
    assert not list((tmp_path / "trials").glob(".*"))


def of_step(step: int, folder: Path, status: str = "") -> None:
    """A training's folder with a checkpoint of this step, and a record of this status, if any."""
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "checkpoints" / f"step-{step}").touch()
    (folder / "best.pt").write_text(str(step))
    if status:
        record = Record("s", Trial().id, Trial().configuration, Trial(), status, started_at="", command="")
        store.write_record(folder, record)


@pytest.mark.parametrize(("status", "kept"), [("timeout", 2), ("cancelled", 2), ("failed", 2), ("ok", 1)])
@pytest.mark.parametrize("killed", [False, True])
def test_an_interrupted_retry_of_a_training_keeps_the_checkpoints_made_since(tmp_path, status, kept, killed):
    """Unless the earlier one had reached its end: what it left belongs to its record."""
    folder = tmp_path / "t"
    of_step(1, folder, status)
    begun = results.cleared(folder, store.OF_A_TRAINING)
    begun.__enter__()
    assert (folder / "checkpoints" / "step-1").exists()
    (folder / "checkpoints" / "step-1").rename(folder / "checkpoints" / "step-2")
    (folder / "best.pt").write_text("2")
    if killed:
        results.restore(results.aside_of(folder))
    else:
        begun.__exit__(None, None, None)
    assert os.listdir(folder / "checkpoints") == [f"step-{kept}"] and (folder / "best.pt").read_text() == str(kept)
    assert store.read_record(folder / "record.json").status == status and os.listdir(tmp_path) == ["t"]


def test_the_folder_of_a_trial_that_a_job_may_be_running_stays_as_it_is(plan_for, tmp_path):
    plan = plan_for("take_a_second")
    first, _ = run(plan, tmp_path)
    folder = tmp_path / "trials" / first.started[0]
    results.set_aside(folder)  # as the job does, of a trial that was submitted again
    folder.mkdir()
    sweep.Run(plan, tmp_path).open(in_jobs={first.started[0]})
    assert os.listdir(folder) == [] and (results.aside_of(folder) / "record.json").exists()
    sweep.Run(plan, tmp_path).open()
    assert (folder / "record.json").exists()


@pytest.mark.parametrize(
    "written",
    [
        ".study.json.a1_b2c3d",
        "tables/.speed.csv.a1_b2c3d",
        "trials/a/ranks/.rank-0.json.a1_b2c3d",
        "launches/2/0-0-torch_ddp/ranks/.error-0.json.a1_b2c3d",
    ],
)
def test_what_was_being_written_when_a_driver_or_a_rank_was_killed_is_removed(plan_for, tmp_path, written):
    half, near = tmp_path / written, tmp_path / written.replace(".json.", ".text.").replace(".csv.", ".text.")
    half.parent.mkdir(parents=True, exist_ok=True)
    half.touch()
    near.touch()
    if written.startswith("trials"):
        results.open_results(tmp_path, plan_for("take_a_second"))
        assert half.exists(), "of one that is not finished: a job of its own may write it now"
        (tmp_path / "trials" / "a" / "record.json").touch()
    results.open_results(tmp_path, plan_for("take_a_second"))
    assert not half.exists() and near.exists()  # what somebody else calls nearly so stays


def test_another_study_or_machine_is_refused_with_the_difference(plan_for, tmp_path):
    plan = plan_for("take_a_second")
    results.open_results(tmp_path, plan)
    other = dataclasses.replace(plan, study=dataclasses.replace(plan.study, name="other"))
    with pytest.raises(HostError, match="holds study 'planted', not 'other': choose another --results"):
        results.open_results(tmp_path, other)
    bigger = dataclasses.replace(plan, machine=dataclasses.replace(MACHINE, cores=64))
    results.open_results(tmp_path, bigger)  # of a study that was only looked at, nothing can be mixed
    results.open_results(tmp_path, plan)
    (tmp_path / "trials" / "one").mkdir()
    (tmp_path / "trials" / "one" / "record.json").write_text("{}")
    with pytest.raises(HostError, match=r"measured on another machine \(cores 2 then, 64 now\)"):
        results.open_results(tmp_path, bigger)
    shares = dataclasses.replace(plan.configurations[0].trial, cores_per_worker=2)
    wider = dataclasses.replace(plan, configurations=(dataclasses.replace(plan.configurations[0], trial=shares),))
    with pytest.raises(HostError, match="measured with 1 core"):
        results.open_results(tmp_path, wider)


def test_two_drivers_on_one_folder_the_second_names_the_first(tmp_path):
    named = rf"in use by another run \(process {os.getpid()} since "
    with results.locked(tmp_path), pytest.raises(HostError, match=named), results.locked(tmp_path):
        pass
    with results.locked(tmp_path):
        pass


# --- a batch larger than one that was out of memory ---


@pytest.mark.long
@pytest.mark.usefixtures("forked_starts")
def test_larger_batches_than_one_that_really_ran_out_of_memory_are_not_run(plan_for, tmp_path):
    """fit_forty asks the allocator for more than there is from 41 samples on."""
    plan = plan_for("fit_forty", batches=(32, 64, 128, 256), repeats=2, max_repeats=2)
    by_batch = {p.trial.batch_per_worker: p.trial for p in plan.configurations}
    first, _ = run(plan, tmp_path, where={"batch_per_worker": 64}, max_trials=1)
    assert [(r.status, r.implied) for r in first.ended] == [("oom", False)]
    _, job = run(plan, tmp_path)
    reason = f"implied: batch_per_worker=64 was out of memory ({first.ended[0].id})"
    for batch, status, implied in ((32, "ok", False), (64, "oom", False), (128, "oom", True), (256, "oom", True)):
        for repeat in (1, 2):
            known = job.records[dataclasses.replace(by_batch[batch], repeat=repeat).id]
            assert (known.status, known.implied) == (status, implied), (batch, repeat)
            record = store.read_trial(tmp_path / "trials" / known.id)
            assert (record.reason == reason, record.exit_code is None) == (implied, implied)
            assert (tmp_path / "trials" / known.id / "log.txt").exists() != implied
    again, _ = run(plan, tmp_path)
    assert again.started == [] and len(again.kept) == 8
    everything, job = run(plan, tmp_path, where={"batch_per_worker": 128}, prune=False)
    assert len(everything.ended) == 2 and not any(record.implied for record in everything.ended)
    assert run(plan, tmp_path)[0].started == [], "what was run then stays, and so does what is still implied"


@pytest.mark.slow
def test_what_was_implied_is_run_once_what_it_rests_on_is_ok(plan_for, tmp_path, monkeypatch):
    """A machine with less memory for a while."""
    plan = plan_for("fails_from", batches=(32, 64, 128))
    monkeypatch.setenv("FAILS_FROM", "64")
    run(plan, tmp_path, where={"batch_per_worker": 64})
    _, job = run(plan, tmp_path)
    assert sorted((r.trial.batch_per_worker, r.implied) for r in job.records.values() if r.status == "oom") == [
        (64, False), (128, True),
    ]  # fmt: skip
    still, _ = run(plan, tmp_path, retry=frozenset({"oom"}))
    assert [(r.trial.batch_per_worker, r.implied) for r in still.ended] == [(64, False)], "128 is still implied"
    monkeypatch.setenv("FAILS_FROM", "1000")
    mended, _ = run(plan, tmp_path, retry=frozenset({"oom"}))
    assert [(r.trial.batch_per_worker, r.status) for r in mended.ended] == [(64, "ok"), (128, "ok")]


# --- records that are not to be believed ---


def becomes_a_link(path: Path) -> None:
    path.symlink_to(path.rename(path.with_name("elsewhere")).name)


SPOILED = {
    "half": lambda path: path.write_text(path.read_text()[:-3]),
    "negative": lambda path: path.write_text(path.read_text().replace('"step_seconds": [', '"step_seconds": [-0.01, ')),
    "another trial's": lambda path: path.write_text(path.read_text().replace("b32", "b64")),
    "link": becomes_a_link,
    "folder": lambda path: (path.unlink(), path.mkdir()),
    "folder is a link": lambda path: becomes_a_link(path.parent),
}


def test_a_record_that_cannot_be_believed_is_measured_again(plan_for, tmp_path):
    plan = plan_for("take_a_second")
    first, _ = run(plan, tmp_path)
    path = tmp_path / "trials" / first.started[0] / "record.json"
    for what, spoil in SPOILED.items():
        spoil(path)
        again, _ = run(plan, tmp_path)
        assert [r.status for r in again.ended] == ["ok"] and again.started == first.started, what
        assert not path.is_symlink() and store.read_trial(path.parent).status == "ok", what


# --- what is kept in memory ---


@pytest.mark.parametrize(
    ("logs", "named"),
    [
        (["trials/a/log.txt"], "trials/a/log.txt"),
        (["trials/a/log.txt", "launches/gates-2/log.txt"], "trials/a/log.txt"),  # a gate's own, which shared its launch
        (["trials/a/alone/log.txt", "launches/gates-2/log.txt"], "launches/gates-2/log.txt"),  # well by itself
        (["trials/a/alone/log.txt"], "trials/a/alone/log.txt"),
    ],
)
def test_the_log_that_is_named_is_of_the_processes_that_failed(tmp_path, logs, named):
    for log in logs:
        (tmp_path / log).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / log).touch()
    assert (
        progress._log(tmp_path, results.Summary("a", "a", Trial(), "failed", "", "", 1.0, 1.0, None, "gates-2"))
        == tmp_path / named
    )


@pytest.mark.parametrize("first", [None, signal.SIGINT])
def test_a_ctrl_c_while_tables_are_made_leaves_the_last_words(first, plan_for, tmp_path, monkeypatch, capsys):
    """The first one ended the trials, or there was none: all were finished."""
    _, job = run(plan_for("take_a_second"), tmp_path)

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(command.options, "render", interrupted)
    stopped = SimpleNamespace(signal=first)
    code = command._finish(Console(), job, [], stopped, "python run_sweep.py tiny.yaml", command.Output())
    said = " ".join(capsys.readouterr().out.split())
    assert code == command.options.INTERRUPTED and "their tables and figures: scaling-study tables" in said
    assert ("To resume: python run_sweep.py tiny.yaml" in said) == (first is not None)


@pytest.mark.slow
def test_a_planted_token_is_in_no_record_log_page_or_export(plan_for, tmp_path, monkeypatch):
    """One that the shell has, and one that a machine file gives to every trial."""
    monkeypatch.setenv("HOROVOD_SECRET_KEY", "t0ken-of-the-shell")
    file = MachineFile(environment={"WANDB_API_KEY": "t0ken-of-the-file", "OMP_NUM_THREADS": "1"})
    plan = dataclasses.replace(plan_for("take_a_second"), cluster=Cluster(file=file))
    (ended,) = run(plan, tmp_path)[0].ended
    analysis.write(tmp_path, page=True)
    pack.pack(tmp_path, tmp_path / "made.study.zip")
    files = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    with zipfile.ZipFile(tmp_path / "made.study.zip") as packed:
        files += [packed.read(name) for name in packed.namelist()]
    assert len(files) > 10 and not any(b"t0ken" in content for content in files)
    record = store.read_trial(tmp_path / "trials" / ended.id)
    assert {"WANDB_API_KEY", "OMP_NUM_THREADS"} <= record.environment.keys()
    assert "HOROVOD_SECRET_KEY" in record.removed_variables and '"$WANDB_API_KEY"' in record.command
