"""The loop with scripts that behave and scripts that do not, all of them really run."""

from __future__ import annotations

import dataclasses
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from scaling_study import process, records, results, sweep
from scaling_study.documents import Document
from scaling_study.errors import Trouble
from scaling_study.frameworks import FRAMEWORKS, Framework
from scaling_study.machine import Machine
from scaling_study.plan import Plan, Planned
from scaling_study.records import Record
from scaling_study.study import Study
from scaling_study.study_schema import Measure
from scaling_study.trial import Trial

HERE = Path(__file__).parent
MACHINE = Machine(cores=2, cpu="test", memory_bytes=2**34)


class Seen:
    """A display that remembers."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.kept: list[str] = []
        self.ended: list[Record] = []

    def starts(self, trial: Trial, planned: Planned) -> None:
        self.started.append(trial.id)

    def finished(self, trial: Trial, planned: Planned, record: Record, again: bool) -> None:
        (self.kept.append(trial.id) if again else self.ended.append(record))


@pytest.fixture
def plan_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Plan]:
    """A plan of planted scripts: `plan_for("crash", "take_a_second", repeats=2)`."""

    def make(*scripts: str, unsupported: str = "", **measure: float) -> Plan:
        settings = Measure.model_validate({"repeats": 1, "max_repeats": 1, "timeout_seconds": 30.0, **measure})
        configurations = []
        for script in scripts:
            table = Framework(
                script, str(HERE / "scripts_that" / f"{script}.py"), ("python",), (), FRAMEWORKS["single"].axes
            )
            monkeypatch.setitem(FRAMEWORKS, script, table)  # type: ignore[arg-type]
            trial = Trial(framework=script, device="cpu", allreduce="none")
            configurations.append(Planned(trial, settings, unsupported))
        document = Document(tmp_path / "study.yaml", "study: planted\n", {}, {})
        study = Study("planted", "weak", None, 0, settings, (), document)
        return Plan(study, MACHINE, tuple(configurations), ())

    monkeypatch.setenv("SECONDS", "0")
    return make


def run(
    plan: Plan, folder: Path, after: Callable[[process.Interruption], None] | None = None, **options
) -> tuple[Seen, sweep.Run]:
    seen = Seen()
    job = sweep.Run(plan, folder, **options)
    job.records = results.open_results(folder, plan)
    with process.listening() as interruption:
        if after:
            after(interruption)
        job.run(seen, interruption)
    return seen, job


def outcome_of(plan: Plan, tmp_path: Path) -> Record:
    seen, _ = run(plan, tmp_path / "results")
    (record,) = seen.ended
    assert records.read_record(tmp_path / "results" / "trials" / record.id / "record.json") == record
    return record


def test_a_good_trial_is_recorded_with_all_that_reproduces_it(plan_for, tmp_path):
    record = outcome_of(plan_for("take_a_second"), tmp_path)
    assert (record.status, record.exit_code, record.reason) == ("ok", 0, "")
    folder = tmp_path / "results" / "trials" / record.id
    assert json.loads((folder / "trial.json").read_text())["batch_per_worker"] == 32
    assert (folder / "command.txt").read_text().strip() == record.command
    assert "take_a_second.py --model resnet18 --batch-per-worker 32" in record.command
    assert record.machine["fingerprint"] == MACHINE.fingerprint
    assert sweep.throughput(record) == pytest.approx(320.0)


def test_a_crash_is_a_result_with_its_cause(plan_for, tmp_path):
    record = outcome_of(plan_for("crash"), tmp_path)
    assert (record.status, record.reason) == ("failed", "rank 0: the planted bug")
    assert "ValueError: the planted bug" in record.error and record.ranks == []


def test_running_out_of_memory_is_oom(plan_for, tmp_path):
    record = outcome_of(plan_for("run_out_of_memory"), tmp_path)
    assert record.status == "oom" and "can't allocate memory" in record.reason


@pytest.mark.slow
def test_the_largest_batch_that_fits_is_found_by_really_running_out_of_memory(plan_for, tmp_path):
    plan = plan_for("fit_forty")
    planned = plan.configurations[0]
    looking = dataclasses.replace(planned, trial=dataclasses.replace(planned.trial, find="max_batch"))
    record = outcome_of(dataclasses.replace(plan, configurations=(looking,)), tmp_path)
    assert record.status == "ok" and record.found["max_batch"] == 40
    tries = {32: "ok", 64: "oom", 48: "oom", 40: "ok", 44: "oom", 42: "oom", 41: "oom"}
    assert record.found["tries"] == {str(batch): status for batch, status in tries.items()}
    assert record.ranks[0].samples_per_step == 40


def test_a_failure_of_another_kind_ends_the_search_for_the_largest_batch(plan_for, tmp_path):
    plan = plan_for("crash")
    planned = plan.configurations[0]
    looking = dataclasses.replace(planned, trial=dataclasses.replace(planned.trial, find="max_batch"))
    record = outcome_of(dataclasses.replace(plan, configurations=(looking,)), tmp_path)
    assert (record.status, record.reason, record.found) == ("failed", "rank 0: the planted bug", {})


def test_a_hang_is_a_time_out_and_leaves_nothing_behind(plan_for, tmp_path):
    record = outcome_of(plan_for("hang", timeout_seconds=1.0), tmp_path)
    assert (record.status, record.reason) == ("timeout", "not finished after 1 s")
    grandchild = int((tmp_path / "results" / "trials" / record.id / "log.txt").read_text())
    assert not psutil.pid_exists(grandchild)


def test_exit_0_without_a_report_is_failed(plan_for, tmp_path):
    record = outcome_of(plan_for("say_nothing"), tmp_path)
    assert (record.status, record.reason) == ("failed", "exited with 0 but left no whole report")


def test_a_whole_report_stands_even_if_the_process_then_dies(plan_for, tmp_path, monkeypatch):
    monkeypatch.setenv("EXIT_CODE", "134")
    record = outcome_of(plan_for("take_a_second"), tmp_path)
    assert record.status == "ok" and record.notes == ["complete; its processes then exited with 134"]


def test_unsupported_is_recorded_once_and_starts_nothing(plan_for, tmp_path):
    plan = plan_for("take_a_second", unsupported="no such device", repeats=3, max_repeats=3)
    record = outcome_of(plan, tmp_path)
    assert (record.status, record.reason, record.total_seconds) == ("unsupported", "no such device", None)


def test_a_failure_does_not_stop_the_others(plan_for, tmp_path):
    seen, _ = run(plan_for("crash", "take_a_second", "say_nothing"), tmp_path)
    assert sorted(r.status for r in seen.ended) == ["failed", "failed", "ok"]


def test_a_second_run_runs_nothing_again(plan_for, tmp_path):
    plan = plan_for("take_a_second", "crash", repeats=2, max_repeats=2)
    first, _ = run(plan, tmp_path)
    again, _ = run(plan, tmp_path)
    assert len(first.started) == 4 and again.started == []
    assert sorted(again.kept) == sorted(first.started)


def test_retry_runs_only_that_status_again(plan_for, tmp_path):
    plan = plan_for("take_a_second", "crash")
    run(plan, tmp_path)
    again, _ = run(plan, tmp_path, retry=frozenset({"failed"}))
    assert [id.split("-")[0] for id in again.started] == ["crash"]


def test_where_and_max_trials_choose(plan_for, tmp_path):
    plan = plan_for("take_a_second", "crash", repeats=3, max_repeats=3)
    seen, _ = run(plan, tmp_path, where={"framework": "take_a_second"}, max_trials=2)
    assert [r.trial["framework"] for r in seen.ended] == ["take_a_second"] * 2
    rest, _ = run(plan, tmp_path, where={"framework": "take_a_second"})
    assert len(rest.started) == 1 and len(rest.kept) == 2


def test_an_unfinished_trial_is_run_again_from_the_start(plan_for, tmp_path):
    plan = plan_for("take_a_second")
    ((trial, _),) = plan.trials()
    half = tmp_path / "trials" / trial.id
    (half / "ranks").mkdir(parents=True)
    (half / "ranks" / "rank-0.json").write_text('{"rank": 0')
    (half / "record.json").write_text('{"schema": 1, "status": "ok"')
    seen, _ = run(plan, tmp_path)
    assert [r.status for r in seen.ended] == ["ok"]


def test_interruption_keeps_what_is_finished_and_leaves_the_running_trial_open(plan_for, tmp_path, monkeypatch):
    monkeypatch.setenv("SECONDS", "1")
    plan = plan_for("take_a_second", repeats=3, max_repeats=3)

    def soon(interruption: process.Interruption) -> None:
        threading.Timer(1.6, os.kill, (os.getpid(), 2)).start()

    seen, _ = run(plan, tmp_path, after=soon)
    assert len(seen.ended) == 1 and len(seen.started) == 2
    monkeypatch.setenv("SECONDS", "0")
    again, _ = run(plan, tmp_path)
    assert len(again.kept) == 1 and len(again.ended) == 2


def plant(job: sweep.Run, plan: Plan, *step_seconds: float) -> None:
    """Finished repeats of the first configuration, with these step times."""
    planned = plan.configurations[0]
    record = next(iter(results.open_results(job.folder, plan).values()))
    for repeat, seconds in enumerate(step_seconds, start=1):
        trial = dataclasses.replace(planned.trial, repeat=repeat)
        rank = dataclasses.replace(record.ranks[0], step_seconds=[seconds] * 10)
        job.records[trial.id] = dataclasses.replace(record, id=trial.id, ranks=[rank])


def test_repeats_that_agree_are_enough(plan_for, tmp_path):
    """The planted throughputs never vary."""
    seen, _ = run(plan_for("take_a_second", repeats=3, max_repeats=9), tmp_path)
    assert len(seen.ended) == 3


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
    run(plan, tmp_path)
    job = sweep.Run(plan, tmp_path)
    plant(job, plan, *step_seconds)
    assert job.repeats(plan.configurations[0]) == total
    plant(job, plan, *step_seconds, 0.5, 0.1)  # what comes later does not change the decision
    assert job.repeats(plan.configurations[0]) == total


def test_extra_repeats_are_run(plan_for, tmp_path):
    plan = plan_for("take_a_second", repeats=3, max_repeats=6)
    job = sweep.Run(plan, tmp_path)
    run(plan, tmp_path, max_trials=1)
    plant(job, plan, 0.1, 0.2, 0.3)
    seen = Seen()
    with process.listening() as interruption:
        job.run(seen, interruption)
    assert [r.trial["repeat"] for r in seen.ended] == [4, 5, 6]


@pytest.mark.parametrize("repeats", [1, 2])
def test_one_or_two_repeats_are_what_was_asked_for(plan_for, tmp_path, repeats):
    """No interval, so there is none to make narrower."""
    seen, _ = run(plan_for("take_a_second", repeats=repeats, max_repeats=9), tmp_path)
    assert len(seen.ended) == repeats


def test_a_retry_that_is_interrupted_loses_nothing(plan_for, tmp_path, monkeypatch):
    plan = plan_for("take_a_second")
    first, _ = run(plan, tmp_path)
    monkeypatch.setenv("SECONDS", "30")

    def soon(interruption: process.Interruption) -> None:
        threading.Timer(1.0, os.kill, (os.getpid(), 2)).start()

    run(plan, tmp_path, after=soon, retry=frozenset({"ok"}))
    again, _ = run(plan, tmp_path)
    assert again.kept == first.started and again.started == []


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


def test_another_study_or_machine_is_refused_with_the_difference(plan_for, tmp_path):
    plan = plan_for("take_a_second")
    results.open_results(tmp_path, plan)
    other = dataclasses.replace(plan, study=dataclasses.replace(plan.study, name="other"))
    with pytest.raises(Trouble, match="holds study 'planted', not 'other': choose another --results"):
        results.open_results(tmp_path, other)
    bigger = dataclasses.replace(plan, machine=dataclasses.replace(MACHINE, cores=64))
    with pytest.raises(Trouble, match=r"measured on another machine \(cores 2 then, 64 now\)"):
        results.open_results(tmp_path, bigger)
    shares = dataclasses.replace(plan.configurations[0].trial, cores_per_worker=2)
    wider = dataclasses.replace(plan, configurations=(dataclasses.replace(plan.configurations[0], trial=shares),))
    with pytest.raises(Trouble, match="measured with 1 core"):
        results.open_results(tmp_path, wider)


def test_two_drivers_on_one_folder_the_second_names_the_first(tmp_path):
    named = rf"in use by another run \(process {os.getpid()} since "
    with results.locked(tmp_path), pytest.raises(Trouble, match=named), results.locked(tmp_path):
        pass
    with results.locked(tmp_path):
        pass
