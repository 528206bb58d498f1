"""`scaling-study bench`: what it compares, what it says, and two commands that really take turns."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from planted_sweeps import MACHINE
from rich.console import Console

from analysis.compare.side_by_side import Pair, Side, SideBySide, Whole, read_whole
from scaling_study import cli, observe
from scaling_study.commands import bench, compared
from scaling_study.commands.compared import Candidate, Look
from scaling_study.commands.progress import Progress, Turns
from scaling_study.errors import HostError, StudyError
from scaling_study.estimate import Estimate
from scaling_study.observe import hooks
from scaling_study.processes import leftovers
from scaling_study.processes.process import Exit
from scaling_study.records import store
from scaling_study.records.manifest import Manifest
from scaling_study.records.results import Summary
from scaling_study.stats.intervals import Interval
from scaling_study.study import plan, study

Capture = pytest.CaptureFixture[str]
TRAIN = """
import sys, time, torch
batch, delay = int(sys.argv[1]), float(sys.argv[2])
model = torch.nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
torch.set_num_threads(1)
data = torch.utils.data.TensorDataset(torch.randn(4096, 8), torch.randint(0, 4, (4096,)))
for epoch in range(1000):
    for x, y in torch.utils.data.DataLoader(data, batch):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        time.sleep(delay)
        loss.backward()
        optimizer.step()
"""
A, B = Candidate("A", "python a.py", {}, of="A"), Candidate("B", "python b.py", {}, of="B")
STAND_IN = Path(__file__).parents[1] / "faults" / "stand_in_torch.py"
SEEN = Look(1, 32, step_seconds=0.01, start_seconds=3.0)


# --- what is compared ---


def expanded(*commands: str, by: str = "bench", by_shell: bool = False, **axes: str) -> list[Candidate]:
    return list(compared.expanded(by, commands, {"workers": "", "batch_per_worker": "", **axes}, by_shell))


def test_every_command_is_compared_with_every_value_that_it_names() -> None:
    commands = ["a {workers} {batch_per_worker} {port}", "b \\\n  {batch_per_worker}"]  # which goes on as in a shell
    found = expanded(*commands, workers="1,2,2", batch_per_worker="32")
    ways = [(each.label, each.text, each.of) for each in found]
    assert ways == [("A", "a 1 32 {port}", "A"), ("B", "a 2 32 {port}", "A"), ("C", "b   32", "C")]


def test_braces_that_are_no_placeholders_stay(capsys: Capture) -> None:
    assert cli.main(["bench", """python t.py '{"rate": 0.1}'""", "python t.py {}", "--dry-run"]) == 0
    assert """'{"rate": 0.1}'""" in capsys.readouterr().out


@pytest.mark.parametrize(
    "commands, asked, fact",
    [
        (["a {workers}", "b"], {}, "--workers"),
        (["a {width}", "b"], {}, "{width}"),
        (["a 'b", "c"], {}, "No closing quotation"),
        (["a {workers}"], {"workers": "1,two"}, "'two'"),
        (["a", "b"] * 20, {}, "at most 26"),
        (["python t.py | tee log", "b"], {}, "--shell, or quote"),
        (["cd x && python t.py", "b"], {}, "has &&"),
        (["python t.py > log", "b"], {}, "has >"),
        (["python t.py --data $HOME/x", "b"], {}, "has $HOME"),
        (["LR=1 python t.py", "b"], {}, "`env` before it"),
        (["b", "WANDB_API_KEY=s3cret python t.py"], {}, "command 2 has WANDB_API_KEY=, whose value may be a secret"),
        (["b", "python t.py --api-key s3cret {width}"], {}, "command 2 has --api-key, whose value may be a secret"),
    ],
)
def test_what_is_wrong_is_said_before_anything_starts(commands: list[str], asked: dict[str, str], fact: str) -> None:
    with pytest.raises(StudyError) as refused:
        expanded(*commands, **asked)
    assert fact in refused.value.problems[0] and "s3cret" not in refused.value.problems[0]


@pytest.mark.parametrize("words", [["a {width}", "b"], ["python t.py | tee log", "b"], ["a", "b"] * 20])
def test_what_is_wrong_names_the_command_that_was_called(words: list[str]) -> None:
    for called, other in (("bench", "explain"), ("explain", "bench")):
        with pytest.raises(StudyError) as refused:
            expanded(*words, by=called)
        assert f"{called} " in str(refused.value) and other not in str(refused.value)


def test_a_shell_reads_a_pipeline_where_it_is_asked_for_and_quotes_keep_one_from_it() -> None:
    quoted = [r"""python t.py 'a | b' "c > \"d\"" e\;f --x=1""", "b"]
    assert [each.started(each.text) for each in expanded(*quoted)] == quoted
    first, _ = expanded("python t.py --port {port} | tee log", "b", by_shell=True)
    assert first.started(first.text) == "sh -c 'python t.py --port {port} | tee log'"


@pytest.mark.parametrize("text, share", [("2%", 0.02), ("0.5", 0.005), ("-1%", None), ("two", None), ("90%", None)])
def test_a_margin_is_a_share(text: str, share: float | None) -> None:
    if share is None:
        with pytest.raises(StudyError):
            bench.margin_of(text)
    else:
        assert bench.margin_of(text) == pytest.approx(share)


def test_samples_are_of_all_commands_or_of_those_that_are_named() -> None:
    assert compared.samples_of("", "AB") == {} and compared.samples_of("32", "AB") == {"A": 32, "B": 32}
    assert compared.samples_of("A=32, B=64", "AB") == {"A": 32, "B": 64}
    for wrong in ("C=3", "A=x", "0"):
        with pytest.raises(StudyError):
            compared.samples_of(wrong, "AB")


@pytest.mark.parametrize(
    "options, fact",
    [
        (["--metric", "acc=(", "--whole"], "--metric"),
        (["--metric", "acc", "--whole"], "one group"),
        (["--metric", "acc=(.*)"], "give --whole"),
        (["--whole", "--export", "there"], "--export"),
        (["--export", "."], "--export .: it is not empty"),
        (["--export", "other"], "--export other: it is not empty, and holds no results of bench-"),
        (["--export", "results/bench-x", "--name", "x"], "the results lie there already"),
        (["--name", "../x"], "--name ../x: letters, digits"),
        (["--name", "my run"], "--name my run: letters, digits"),
    ],
)
def test_options_that_say_nothing_are_refused(options, fact, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    for name in ("other", "results/bench-x"):
        Path(name).mkdir(parents=True)
        Manifest(schema_version=1, study=Path(name).name).write(Path(name))
    assert cli.main(["bench", "a", "b", *options]) == 2 and fact in capsys.readouterr().err


def test_one_command_is_compared_with_nothing(capsys: Capture) -> None:
    assert cli.main(["bench", "python t.py"]) == 2 and "two commands or more" in capsys.readouterr().err


def test_a_command_that_takes_other_samples_than_expected_is_refused() -> None:
    candidates = expanded("a {workers}", "b", workers="2")
    looks = {"A": compared.Look(2, 16), "B": compared.Look(1, 32)}
    bench.refuse_other_samples("32", candidates, looks)
    with pytest.raises(HostError, match="B: --expect says 16 samples per step, 1 x 32 = 32 were seen: b"):
        bench.refuse_other_samples("{workers} * 16", candidates, looks)
    for text, fact in (("{workers} ** 2", "no arithmetic"), ("{batch_per_worker}", "neither a key")):
        with pytest.raises(StudyError) as refused:
            bench.refuse_other_samples(text, candidates)
        assert fact in refused.value.problems[0]


@pytest.mark.parametrize("samples, assumed", [(None, False), (16, True), (7, True)])
def test_what_is_expected_of_samples_that_were_not_observed_cannot_be_checked(
    samples: int | None, assumed: bool
) -> None:
    """Those of {batch_per_worker} or --samples-per-step are what somebody said: equal to what is expected, or not."""
    candidates = expanded("a {workers}", "b {batch_per_worker}", workers="2", batch_per_worker="16")
    unseen = compared.Look(1, samples, unknown="neither a DataLoader nor the input", assumed=assumed)
    why = "B: --expect cannot be checked, since samples of a step were not observed: neither a DataLoader nor the input"
    with pytest.raises(HostError, match=why) as refused:
        bench.refuse_other_samples("16", candidates, {"A": compared.Look(2, 8), "B": unseen})
    [problem] = refused.value.problems
    assert problem.endswith("reports them; or leave --expect out") and "scaling_study.observe.step(samples)" in problem


def test_a_dry_run_says_what_would_start_and_starts_nothing(tmp_path: Path, capsys: Capture) -> None:
    words = ["bench", "touch {run_dir}/x", "touch y", "--dry-run", "--results", str(tmp_path / "r")]
    assert cli.main(words) == 0
    said = capsys.readouterr().out
    assert "touch {run_dir}/x" in said and "4 to 10 times" in said and str(Path.cwd()) in said
    assert "(10 steps, at most 10 min" in said and "as typed and with your rights" in said
    assert f"Results: {tmp_path / 'r'}" in said
    assert cli.main([*words, "--whole"]) == 0
    assert "3 times, and runs to its own end" in capsys.readouterr().out and not (tmp_path / "r").exists()


# --- a look at each command ---


class Supervisor:
    """In place of the one that starts commands: writes what an observer would, `steps` lines for each rank."""

    signal = None

    def __init__(self, *ranks: int, exit: Exit | None = None, log: str = "", world: int = 0, samples: Any = ()) -> None:
        self.ranks, self.exit, self.log = ranks, exit or Exit(0, 5.0), log
        self.world, self.samples = world or len(ranks), samples or [32.0] * len(ranks)
        self.argv: list[str] = []

    def fileno(self) -> int:
        return 0

    def run(self, argv: list[str], env: Mapping[str, str], log: Path, seconds: float, unseen: Path | None) -> Exit:
        self.argv = argv
        log.write_text(self.log)
        for rank, steps in enumerate(self.ranks):
            lines: list[dict[str, Any]] = [{"kind": "process", "rank": rank, "world": self.world}]
            lines += [{"kind": "step", "seconds": 0.1 + rank, "ended": time.time() + n} for n in range(steps)]
            lines.append({"kind": "end", "samples_per_step": self.samples[rank], "samples_unknown": ""})
            place = Path(env[observe.FOLDER]) / f"{rank}.jsonl"
            place.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return self.exit


def look(supervisor: Any, tmp_path: Path, candidate: Candidate = A) -> Look:
    return compared.look_at(candidate, tmp_path / "looks" / candidate.label, supervisor)


def test_a_look_finds_processes_samples_and_seconds(tmp_path: Path) -> None:
    supervisor = Supervisor(10, 10)
    candidate = Candidate("A", "python a.py {port} '{x y}'", {})
    found = look(supervisor, tmp_path, candidate)
    assert (found.processes, found.samples, found.apart) == (2, 32, "") and found.step_seconds == 1.1
    assert supervisor.argv[-4:-2] == ["python", "a.py"] and supervisor.argv[-2].isdecimal()
    own = tmp_path / "looks" / "A"
    store.write_json(own / compared.LOOK, vars(found))
    assert compared.remembered(candidate, own) == found
    assert compared.remembered(A, own) is None, "that was another command"


def test_what_cannot_be_held_is_seen_at_once(tmp_path: Path) -> None:
    assert look(Supervisor(10, 7), tmp_path).apart == "its processes made 7 and 10 steps"


def test_the_first_stage_of_a_pipeline_may_see_no_samples(tmp_path: Path) -> None:
    assert look(Supervisor(10, 10, samples=(None, 16.0)), tmp_path).samples == 16


UNSEEN = "scaling-study: not observed: OSError: full\n"


@pytest.mark.parametrize(
    "supervisor, facts",
    [
        (Supervisor(exit=Exit(1, 1.0), log="no such data set"), ["ended with 1", "no such data set"]),
        (Supervisor(3, exit=Exit(1, 1.0), log="out of memory"), ["ended with 1 after 3 steps", "out of memory"]),
        (Supervisor(6), ["ended with 0 after 6 steps", "--whole"]),
        (Supervisor(exit=Exit(-15, 600.0, timed_out=True)), ["took too long", "it printed nothing"]),
        (Supervisor(exit=Exit(0, 1.0)), ["PYTHONPATH", "scaling_study.observe.step(samples)"]),
        (Supervisor(exit=Exit(0, 1.0), log=UNSEEN), ["observed (not observed: OSError"]),
        (Supervisor(exit=Exit(-15, 2.0, lost_sight=True), log=UNSEEN), ["A was ended and", "(not observed: OSError"]),
        (Supervisor(exit=Exit(0, 1.0, left_behind=2)), ["left 2 processes behind", "daemon"]),
        (Supervisor(exit=Exit(None, 0.0, error="nope: no such file")), ["nope: no such file"]),
        (Supervisor(exit=Exit(1, 1.0), log="EOFError: EOF when reading a line"), ["/dev/null as its input"]),
        (Supervisor(10, 10, world=1), ["A trained in 2 processes, in a world of 1", "Horovod"]),
        (Supervisor(10, 10, samples=(16, 48)), ["A takes 16 and 48 samples a step in its processes"]),
    ],
)
def test_a_command_that_fails_is_named_with_its_last_words(supervisor, facts, tmp_path):
    with pytest.raises(HostError) as why:
        look(supervisor, tmp_path)
    assert why.value.problems[0].startswith("A ") and all(fact in str(why.value) for fact in facts)


@pytest.fixture
def looking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Look]]:
    """looking(given, **what is seen of A) -> looks at A and B."""

    def looks(given: Mapping[str, int], **seen: Any) -> dict[str, Look]:
        def look_at(each: Candidate, *_: Any) -> Look:
            (tmp_path / "looks" / each.label).mkdir(parents=True, exist_ok=True)
            return replace(SEEN, command=each.text, **(seen if each is A else {}))

        monkeypatch.setattr(compared, "look_at", look_at)
        return compared.looked_at([A, B], tmp_path, Console(file=io.StringIO()), given)

    return looks


def test_samples_that_cannot_be_told_may_be_said_and_those_seen_are_not_overruled(looking):
    unknown = {"samples": None, "unknown": "16 or 35"}
    assert looking({}, **unknown)["A"].samples is None
    said = looking({"A": 16}, **unknown)
    assert said["A"].samples == 16, "the look is not made again"
    (line,) = compared.assumed_samples(said)
    assert line.startswith("Samples of a step of A were not observed (16 or 35): 16 of each process")
    with pytest.raises(HostError, match=r"B: --samples-per-step says 16, and 32 .*observe\.step\(16\)"):
        looking({"A": 16, "B": 16})


def test_launches_of_two_versions_of_a_script_are_not_mixed(looking, tmp_path, monkeypatch):
    script, measured = tmp_path / "a.py", dict[str, Any]()
    monkeypatch.setattr(compared.results_folder, "finished", lambda _: measured)

    def look(text: str, seconds: float) -> float:
        """What a look at A said of its start, which takes so long if it is looked at now."""
        script.write_text(text)
        return looking({}, code=observe.digests([str(script)]), start_seconds=seconds)["A"].start_seconds

    assert [look("one", 3.0), look("one", 4.0), look("two", 5.0)] == [3.0, 3.0, 5.0]
    ok = measured["1"] = SimpleNamespace(status="ok", trial=SimpleNamespace(arguments="command=B"))
    assert [look("two", 6.0), look("three", 7.0)] == [5.0, 7.0], "nothing of A was measured"
    ok.trial.arguments = "command=A"
    assert look("three", 8.0) == 7.0
    with pytest.raises(HostError, match=rf"^A: {script} changed since .*--name NEW"):
        look("four", 9.0)
    with pytest.raises(HostError, match=rf"^A: {script} changed since"):  # in the middle of its launches
        compared.refuse_two_versions([A], {"A": replace(SEEN, code={str(script): "another"})}, tmp_path)


TRAINS = """
import os, sys, time, torch
optimizer = torch.optim.Optimizer()
{before}
while True:
    time.sleep(0.002)
    torch.autograd.backward(None)
    {step}
"""
CAUGHT = "try: optimizer.step()\n    except BaseException: print('caught', flush=True)"


@pytest.mark.parametrize(
    "command, script",
    [
        ("python train.py | tee out.log", {}),
        ("python train.py; echo done", {"before": "os.mkdir('own'); os.chdir('own'); os.rmdir('../own')"}),
        ("python train.py | tee out.log", {"step": CAUGHT}),
    ],
    ids=["a pipeline", "its folder is gone", "all exceptions are caught"],
)
def test_a_look_for_real(command: str, script: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stand-in of torch, so that it takes no time."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(STAND_IN, "torch.py")
    Path("train.py").write_text(TRAINS.format(**{"before": "", "step": "optimizer.step()", **script}))
    for name in ("torch.py", "train.py"):
        os.utime(name, (1, 1))  # what is as new as the look is taken for something that it wrote
    candidate = Candidate("A", command, {}, by_shell=True)
    look = compared.looked_at([candidate], tmp_path / "results", Console(file=io.StringIO()))["A"]
    assert (look.processes, look.samples, look.apart) == (1, None, "")
    ours = [tmp_path / name for name in ("torch.py", "train.py")]
    assert look.code == observe.digests(map(str, ours if "before" not in script else ours[1:]))
    assert [str(tmp_path / "out.log")] * ("tee" in command) == list(look.wrote)
    ours_and_theirs = {"torch.py", "train.py", "out.log", "__pycache__", "results"}
    assert {path.name for path in tmp_path.iterdir()} <= ours_and_theirs, "records go to the results, and nowhere else"
    [lines] = observe.read(tmp_path / "results" / "looks" / "A" / "observed")
    assert lines[-1]["why"] == "ended by scaling-study after 10 steps" and lines[-1]["steps"] == 10
    said = (tmp_path / "results" / "looks" / "A" / "log.txt").read_text()
    assert said.count("caught") == (hooks.MOST_ENDS if script.get("step") else 0), "then the process is ended"


def test_a_file_that_two_commands_write_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = {"A": replace(SEEN, wrote=["/x/log", "/x/a"]), "B": replace(SEEN, wrote=["/x/log"])}
    (line,) = compared.shared_files({label: look.wrote for label, look in looks.items()})
    assert "A and B write the same file, /x/log" in line and "{run_dir}" in line
    with monkeypatch.context() as redirected:  # bench ... > log
        redirected.setattr(compared, "_written_by", {1: "/x/log", 2: ""}.get)
        assert not [*compared.shared_files({label: look.wrote for label, look in looks.items()})]
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setattr(leftovers, "EVERY_SECONDS", 0.02)
    Path("old").touch()
    os.utime("old", (1, 1))
    program = "import sys; f = open('../far', 'a'); open('near', 'w').close(); open('.hidden', 'w'); sys.stdin.read()"
    with leftovers.files_written(tmp_path / "results") as wrote:
        child = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE)
        deadline = time.monotonic() + 20
        while not wrote and time.monotonic() < deadline:
            time.sleep(0.02)
        child.communicate()
    assert wrote == {str(tmp_path / "far"), str(tmp_path / "work" / "near")}


# --- how it is measured ---


@pytest.mark.parametrize("step, blocks, seconds", [(0.002, 6, 0.5), (0.125, 6, 0.5), (0.38, 4, 1.52), (5.0, 4, 20.0)])
def test_a_block_has_several_steps(step: float, blocks: int, seconds: float) -> None:
    looks = {"A": SEEN, "B": replace(SEEN, step_seconds=step)}
    assert compared.blocks_of(looks) == (blocks, pytest.approx(seconds))


def written(candidates: list[Candidate], looks: dict[str, Look], folder: Path) -> plan.Plan:
    file = compared.write_study(candidates, looks, folder, 0.02)
    return plan.make(study.load(file), MACHINE)


def test_a_resnet_of_380_ms_is_planned_within_three_minutes(tmp_path: Path) -> None:
    looks = dict.fromkeys("AB", Look(2, 32, step_seconds=0.38, start_seconds=8.0))
    seconds = sum(compared.launch_seconds(look, *compared.blocks_of(looks)) for look in looks.values())
    of_looks = sum(look.start_seconds + compared.LOOK_STEPS * look.step_seconds for look in looks.values())
    assert compared.LAUNCHES * seconds + of_looks < 180
    planned = written([A, B], looks, tmp_path)
    assert {p.trial.window.steps_in_block(0.38) for p in planned.configurations} == {4}
    assert planned.configurations[0].trial.warm and planned.configurations[0].measure.repeats == compared.LAUNCHES


def test_on_a_gpu_a_command_has_the_device_that_it_was_seen_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One on the CPU stays there, two may share the GPU, and none is called interleaved where it is not."""
    with_a_gpu = replace(MACHINE, gpus=("H100",))
    monkeypatch.setattr(compared, "this_machine", lambda: with_a_gpu)
    looks = {"A": replace(SEEN, device="cpu"), "B": replace(SEEN, processes=2, device="cuda")}
    file = compared.write_study([A, B], looks, tmp_path, 0.02)
    planned = plan.make(study.load(file), with_a_gpu)
    trials = [each.trial for each in planned.configurations]
    assert [(each.device, each.oversubscribe, each.warm) for each in trials] == [
        ("cpu", False, None),
        ("cuda", True, None),
    ]
    assert not any(each.unsupported for each in planned.configurations)
    assert compared.why_apart(looks) == {"B": "its 2 processes are more than 1 GPU"}
    one = {"B": replace(SEEN, device="cuda")}
    assert "interleaving was tried with one worker" in compared.why_apart(one)["B"]
    assert compared.why_apart({"A": looks["A"]}) == {}


def test_the_study_compares_with_the_first_and_analyses_see_one_command_with_several_workers(tmp_path: Path) -> None:
    found = expanded("a {workers}", "b", workers="1,2")
    looks = {"A": SEEN, "B": replace(SEEN, processes=2), "C": SEEN}
    planned = written(found, looks, tmp_path)
    trials = [p.trial for p in planned.configurations]
    assert [(t.command, t.arguments, t.workers) for t in trials] == [
        ("a {workers}", "command=A", 1),
        ("a {workers}", "command=A", 2),
        ("b", "command=C", 1),
    ]
    assert planned.baseline == [trials[0]]
    assert [compared.keys_of(found, looks)[compared.key_of(trial)] for trial in trials] == ["A", "B", "C"]


def test_a_batch_that_is_not_what_is_seen_is_filled_in(tmp_path: Path) -> None:
    """Of accumulation: {batch_per_worker} is 32, and a step takes 64 samples."""
    found = expanded("a {batch_per_worker}", batch_per_worker="16,32")
    looks = {"A": replace(SEEN, samples=32), "B": replace(SEEN, samples=64)}
    trials = [p.trial for p in written(found, looks, tmp_path).configurations]
    assert [(t.command, t.batch_per_worker) for t in trials] == [("a 16", 32), ("a 32", 64)]


def test_where_one_cannot_be_held_all_alternate(tmp_path: Path) -> None:
    looks = {"A": SEEN, "B": replace(SEEN, apart="its processes made 7 and 10 steps")}
    assert not any(p.trial.warm for p in written([A, B], looks, tmp_path).configurations)
    screen = io.StringIO()
    compared.say_how_long(Console(file=screen, width=500), looks, 0.02)
    assert "alternate" in screen.getvalue() and "B: its processes made 7 and 10 steps" in screen.getvalue()
    assert "4 launches of each, alternating. More" in screen.getvalue() and "at most 10 in all" in screen.getvalue()


# --- while it runs ---


@pytest.fixture
def turns(tmp_path: Path) -> tuple[Turns, plan.Plan, io.StringIO]:
    """The display of A and B of which nothing has run, their plan, and the screen."""
    looks, screen = dict.fromkeys("AB", SEEN), io.StringIO()
    planned, keys = written([A, B], looks, tmp_path), compared.keys_of([A, B], looks)
    of = {"label_of": compared.label_of(keys), "expected": {"A": 9.0, "B": 9.0}, "later": 2}
    console = Console(file=screen, width=500)
    return Turns(console, planned, planned.trials(), Estimate(), True, tmp_path, **of), planned, screen


def finish(shown: Turns, planned: plan.Plan, launch: int, *rates: float) -> None:
    for each, rate in zip(planned.configurations, rates, strict=True):
        trial = each.at(launch).trial
        ended = Summary(trial.id, trial.configuration, trial, "ok", "", "", 9.0, rate, None)
        shown.finished(each.at(launch), ended, again=False)


def test_one_line_says_the_launch_the_command_the_margin_and_the_time_left(turns):
    shown, planned, screen = turns
    first, second = (p.trial for p in planned.configurations)
    shown.starts(planned.configurations[0])
    shown.building(second)
    assert str(shown.render()).startswith("launch 1: B warms up, about ")
    for block, seconds in enumerate((0.010, 0.011, 0.009), 1):
        shown.block_begins(1, block, 6)
        shown.block_timed(first, 0.01)
        shown.block_timed(second, seconds)
    assert str(shown.render()).startswith("launch 1: block 3 of 6, B 9.0 ms a step, about ")
    assert str(shown.render()).endswith("left; ±24.9 % over 3 blocks")
    lines = screen.getvalue().splitlines()
    assert len(lines) == 3 and lines[1].startswith("launch 1: block 2 of 6, ") and " left" in lines[1]
    for launch in (1, 2, 3):
        finish(shown, planned, launch, 100.0, 100.0 + launch)
    assert str(shown.render()).startswith("about ") and str(shown.render()).endswith("left; ±2.4 % over 3 launches")


@pytest.mark.parametrize("took", [(0.001, 0.1, 5.0), (0.010, 0.012, 0.0085)])
def test_a_margin_above_30_percent_is_no_number(took, turns):
    shown, planned, screen = turns
    for block in took:
        for each, seconds in zip(planned.configurations, (0.01, block), strict=True):
            shown.block_timed(each.trial, seconds)
    assert str(shown.render()).endswith("left; margin above ±30 %")
    plain = Progress(Console(file=io.StringIO()), planned, planned.trials(), Estimate(), False)
    plain.blocks = shown.blocks
    assert plain._widths() == "; margin above ±30 %"
    for launch, seconds in enumerate(took, 1):
        finish(shown, planned, launch, 1.0, 0.01 / seconds)
    shown.expects(more := [each.at(5) for each in planned.configurations])
    shown.starts(more[0])
    assert "the margin of B over A is above ±30 %, and ±2 % is asked" in screen.getvalue()


def test_launches_that_a_margin_asks_for_are_announced_once_with_the_reason(turns):
    shown, planned, screen = turns
    shown.later = 0
    for launch in (1, 2, 3, 4):
        finish(shown, planned, launch, 100.0, 100.0 + 10 * launch)
    screen.truncate(0)
    more = [each.at(number) for number in (5, 6, 7) for each in planned.configurations]
    shown.expects(more)
    finish(shown, planned, 5, 100.0, 150.0)  # as of an earlier run
    screen.truncate(0)
    for each in more[2:]:
        shown.starts(each)
    (line,) = screen.getvalue().strip("\0").splitlines()
    assert re.fullmatch(
        r"Launches 6 to 7 follow, about \d+ s: after 5 launches the margin of B over A is ±\d\d\.\d %, and ±2 % is "
        r"asked for\.",
        line,
    )


def test_a_machine_that_is_busy_before_anything_starts_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    for load, said in ((10.04, "the machine is busy: load 10.0 on 2 cores"), (2.0, "")):
        monkeypatch.setattr(os, "getloadavg", lambda load=load: (load, 0.0, 0.0))
        screen = io.StringIO()
        compared.say_if_busy(Console(file=screen, width=500))
        assert said in screen.getvalue() and bool(said) == bool(screen.getvalue())


@pytest.mark.parametrize("launches, said", [(3, "So far, after 3 launches: B is"), (0, "nothing is compared yet")])
def test_a_bench_that_is_stopped_says_what_is_known_so_far(launches, said, tmp_path, capsys, monkeypatch):
    known = pair(2.1, 4.9)
    both = SideBySide([known.first, known.side], [known], {})
    monkeypatch.setattr(compared, "looked_at", lambda *_: dict.fromkeys("AB", SEEN))
    monkeypatch.setattr(compared, "in_turns", lambda *_: 130)
    monkeypatch.setattr(bench.results_folder, "finished", lambda _: dict.fromkeys(range(launches)))
    monkeypatch.setattr(bench.options, "side_by_side", lambda *_: both)
    assert cli.main(["bench", "a", "b", "--results", str(tmp_path)]) == 130
    assert said in capsys.readouterr().out


def test_fewer_launches_than_planned_resolve_nothing() -> None:
    said = pair(2.1, 4.9).so_far(0.02, 4)
    assert said == "So far, after 3 launches: B is 3.21x [2.10, 4.90] as fast as A (95 %); not resolved."
    assert pair(2.1, 4.9).so_far(0.02, 3).endswith("as fast as A (95 %).")
    assert pair(0.9, 1.2).so_far(0.02, 3).endswith("(95 %); not resolved.")
    assert pair(None, None).so_far(0.02, 3) == "So far, after 3 launches: B over A: 1.30x; not resolved."


def test_ctrl_c_in_a_look_ends_it_and_says_how_to_resume(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    waiting = """python -c 'open("begun", "w"); import time; time.sleep(600)'"""

    def stop() -> None:
        deadline = time.monotonic() + 60
        while not Path("begun").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=stop, daemon=True).start()
    began = time.monotonic()
    assert cli.main(["bench", waiting, "b", "--name", "x", "--margin", "3%"]) == 130
    assert time.monotonic() - began < 120
    said = " ".join(capsys.readouterr().out.split())
    assert "Stopped; what is measured is kept. To resume: scaling-study bench" in said
    assert said.endswith(" b --margin 3% --name x")


# --- what is said ---


def side(label: str, parts: dict[str, float], samples: int = 32, **other: Any) -> Side:
    row: Any = {"global_batch": samples, "samples_per_second": 100.0, "workers": 1, "command": "c"}
    return Side(label, {**row, "repeat_launches": "1/0-1-command"}, sum(parts.values()), parts, **other)


def pair(low: float | None, high: float | None, **other: Any) -> Pair:
    mean = 1.3 if low is None or high is None else (low * high) ** 0.5
    return Pair(side("B", {"forward": 0.05, "backward": 0.05}, **other), side("A", {"forward": 0.05, "backward": 0.1}),
                Interval(mean, low, high, 3))  # fmt: skip


@pytest.mark.parametrize(
    "low, high, words, resolved",
    [
        (1.28, 1.34, "B is 1.31x [1.28, 1.34] as fast as A", True),
        (0.70, 0.80, "B is 0.75x [0.70, 0.80] as fast as A", True),
        (1.002, 1.012, "B is 1.007x [1.002, 1.012] as fast as A", True),
        (0.99, 1.01, "B is as fast as A to 2 %", True),
        (0.984, 1.022, "B and A are too close to call, at a margin of at most ±2 %: 1.003x [0.984, 1.022]", True),
        (0.95, 1.06, "Not resolved whether B is faster than A", False),
        (0.979, 1.021, "Not resolved whether B is faster than A", False),
        (None, None, "say nothing of how sure", False),
    ],
)
def test_a_verdict_is_a_sentence_with_its_interval(low, high, words, resolved):
    assert words in pair(low, high).sentence(0.02) and pair(low, high).is_resolved(0.02) == resolved


def test_the_part_that_changed_is_named_and_unlike_work_too() -> None:
    assert pair(1.2, 1.4).changes() == ["backward 100.0 -> 50.0 ms"] and not list(pair(1.2, 1.4).caveats())
    assert not replace(pair(1.2, 1.4), side=side("B", {})).changes(), "a script without torch shows no parts"
    (caveat,) = pair(1.2, 1.4, samples=64).caveats()
    assert "unlike work" in caveat and "32" in caveat and "64" in caveat
    assert "as fast as A, at unlike work (95 %" in pair(1.2, 1.4, samples=64).sentence(0.02)
    lines = list(SideBySide([pair(1, 2).first, pair(1, 2).side], [pair(1.2, 1.4)], {"C": "failed"}).lines(0.02))
    assert len(lines) == 5 and "1 process" in lines[0] and lines[2] == "C  failed"


def test_where_samples_are_not_known_rates_are_of_steps_and_the_option_is_asked_for() -> None:
    one, two = side("A", {"forward": 0.1}, 1), side("B", {"forward": 0.05}, 1, observing=0.002)
    both = SideBySide([one, two], [Pair(two, one, Interval(2.0, 1.9, 2.1, 3), True)], {}, {"A": "16 or 35 rows"})
    lines = list(both.lines(0.02))
    assert "10.0 steps/s" in lines[0] and "samples" not in lines[0]
    assert "of steps a second" in lines[3] and "16 or 35 rows" in lines[5] and "--samples-per-step A=N" in lines[5]
    assert lines[6] == "The observer took 0.2 % of a step of B."
    said = both.to_dict(0.02)
    assert said["unit"] == "steps" and said["commands"][0]["samples_per_second"] is None
    assert said["ratios"][0]["caveats"] and said["commands"][1]["observer_share"] == 0.002


def test_exit_codes_and_the_keys_of_the_json(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs read these: a key may be added, and none renamed or removed."""
    known, unknown = pair(1.28, 1.34), pair(0.9, 1.2)
    for both, code in (
        (SideBySide([known.first, known.side], [known], {}), 0),
        (SideBySide([known.first, known.side], [known, unknown], {}), 3),
        (SideBySide([known.first], [], {"B": "failed: it crashed"}), 1),
    ):
        monkeypatch.setattr(bench.options, "side_by_side", lambda *_, both=both: both)
        looks = {"A": SEEN, "B": replace(SEEN, apart="unlike steps", assumed=True, unknown="16 or 35")}
        assert bench.verdict(tmp_path, [A, B], 0.02, Console(), True, looks) == code
        said = json.loads(capsys.readouterr().out)
        assert set(said) >= {"unit", "commands", "ratios", "failed", "said", "notes", "results"}
        assert "unlike steps" in said["notes"][0] and "16 or 35" in said["notes"][1]
        of_a_command = "label command samples_per_second step_seconds parts processes step_samples observer_share"
        assert set(said["commands"][0]) >= set(of_a_command.split())
        of_a_ratio = "of over ratio low high launches resolved sentence caveats changes"
        assert all(set(ratio) >= set(of_a_ratio.split()) for ratio in said["ratios"])


# --- whole runs ---


def test_whole_runs_are_compared_launch_by_launch_with_their_cost(tmp_path: Path) -> None:
    for label, seconds in (("A", (10.0, 11.0, 12.0)), ("B", (5.0, 5.5, 6.0))):
        for launch, each in enumerate(seconds, 1):
            own = tmp_path / "whole" / f"{launch}-{label}"
            own.mkdir(parents=True)
            run = {"command": label, "seconds": each, "training_seconds": each - 1, "processes": 2, "steps": 9}
            store.write_json(own / "whole.json", run)
            (own / "log.txt").write_text("acc=nan\nacc=0.5\nacc=0.75\nacc=nope\n" if label == "A" else "nothing\n")
    named = {"A": "A", "B": "B"}
    said = read_whole(tmp_path, named, r"acc=(\S+)")
    assert said.ratio("B").mean == pytest.approx(2.0) and said.is_resolved(0.02)
    first, second, verdict, missing = said.lines(0.02)
    assert "11.0 s in all" in first and "10.0 s of training" in first and "22.0 s of all its" in first
    assert "best metric 0.75" in first and "metric" not in second and "B is 2" in verdict and "B printed" in missing
    assert read_whole(tmp_path, named, r"acc=(\S+)", lowest=True).means("A")["metric"] == 0.5
    assert isinstance(said, Whole) and said.to_dict(0.02)["commands"][0]["worker_seconds"] == 22.0


def test_commands_run_to_their_end_in_alternation_and_what_has_run_is_kept(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    program = """import sys, time; print("acc=0.%s" % sys.argv[1]); time.sleep(float(sys.argv[2]))"""
    Path("run.py").write_text(f"{program}; open('both.log', 'a').write('x')")
    os.utime("run.py", (1, 1))
    order: list[str] = []
    start = compared.start

    def noted(each: Candidate, *how: Any) -> Exit:
        order.append(each.label)
        return start(each, *how)

    monkeypatch.setattr(compared, "start", noted)
    words = ["bench", "python run.py 7 0", "python run.py 8 0.8", "--whole", "--metric", "acc=(.*)", "--name", "x"]
    assert cli.main(words) in (0, 3) and "".join(order) == "ABBAAB"
    out = capsys.readouterr().out
    assert "best metric 0.8" in out and f"A and B write the same file, {tmp_path / 'both.log'}" in out
    assert cli.main([*words, "--json"]) in (0, 3) and len(order) == 6, "nothing runs again"
    said = json.loads(capsys.readouterr().out)
    assert said["commands"][1]["seconds"] > said["commands"][0]["seconds"] and said["ratios"][0]["launches"] == 3
    assert cli.main(["bench", "python run.py 7 0", "python none.py", "--whole", "--name", "x"]) == 1
    assert "none.py" in capsys.readouterr().err
    Path("run.py").write_text(program)
    assert cli.main(words) == 1 and len(order) == 7, "nothing of the other version runs"
    assert f"A: {tmp_path / 'run.py'} changed since" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    "ended, facts",
    [
        (0, ["nothing is compared yet"]),
        (1, ["A  10.0 s in all", "nothing is compared yet"]),
        (3, ["A  10.0 s in all", "B  4.50 s in all", "So far, after 1 launch: B over A: 2.00x; not resolved."]),
        (5, ["So far, after 2 launches: B over A: 2.24x", "not resolved"]),
    ],
)
def test_whole_runs_that_are_stopped_say_what_is_known_so_far(ended, facts, tmp_path, capsys, monkeypatch):
    """Beside three whole runs of a command that was called B before."""
    monkeypatch.chdir(tmp_path)
    for launch in (1, 2, 3):
        (own := tmp_path / "bench-x" / "whole" / f"{launch}-B").mkdir(parents=True)
        store.write_json(own / bench.WHOLE, {"command": "another", "seconds": 1.0})
    seconds = iter([10.0, 5.0, 4.0, 10.0, 10.0][:ended])

    def start(each: Candidate, own: Path, *_: Any) -> Exit:
        if (took := next(seconds, None)) is None:
            raise KeyboardInterrupt
        own.mkdir(parents=True, exist_ok=True)
        return Exit(0, took)

    monkeypatch.setattr(compared, "start", start)
    monkeypatch.setattr(compared, "started_here", lambda _: contextlib.nullcontext())
    assert cli.main(["bench", "a", "b", "--whole", "--name", "x", "--results", "."]) == 130
    said = capsys.readouterr().out
    assert all(fact in said for fact in facts) and "To resume: scaling-study bench a b" in said


# --- for real ---


@pytest.fixture
def benched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(compared, "LAUNCHES", 2)
    monkeypatch.setattr(compared, "MOST_LAUNCHES", 2)
    monkeypatch.setattr(compared, "BLOCK_SECONDS", 0.1)
    Path("train.py").write_text(TRAIN)
    return lambda *words: cli.main(["bench", *words, "--name", "x"])


@pytest.mark.slow
def test_a_command_that_waits_is_slower_by_what_it_waits(benched: Callable[..., int], capsys: Capture) -> None:
    words = ("python train.py {batch_per_worker} 0.01", "python train.py 16 0.03", "--batch-per-worker", "16")
    assert benched(*words, "--json") == 3, "two launches claim no interval"
    said = json.loads(capsys.readouterr().out)
    (ratio,) = said["ratios"]
    assert (ratio["of"], ratio["over"]) == ("B", "A") and 0.3 < ratio["ratio"] < 0.8, "0.37; more under load"
    assert [side["step_samples"] for side in said["commands"]] == [16, 16]
    assert said["commands"][1]["step_seconds"] > 0.03 and 0 < said["commands"][0]["observer_share"] < 0.5
    records = sorted(Path("results/bench-x/trials").glob("*/record.json"))
    before = [path.stat().st_mtime_ns for path in records]
    assert benched(*words, "--export", "there") == 3
    assert [path.stat().st_mtime_ns for path in records] == before, "nothing is measured again"
    out = capsys.readouterr().out
    assert len(records) == 4 and "Nothing was left to measure" in out and "as fast as A" not in out
    assert list(Path("there").glob("**/results.csv"))
    assert not (Path("there") / "looks").exists() and (Path("there") / "report.html").exists()
    assert cli.main(["compare", "results/bench-x", "there"]) == 3, "it is read, and two launches say nothing"


@pytest.mark.slow
def test_a_command_that_stops_others_waiting_is_measured_in_launches_that_alternate(benched, capsys, monkeypatch):
    """One that ends after 30 steps is gone in the middle of its turns."""
    monkeypatch.setattr(compared, "LAUNCHES", 1)
    Path("short.py").write_text(TRAIN.replace("range(1000)", "range(1)").replace("4096", "480"))
    assert benched("python train.py 16 0.004", "python short.py 16 0.004") == 3, "one launch claims no interval"
    out = " ".join(capsys.readouterr().out.split())
    assert "separate launches that alternate" in out and "B cannot be interleaved: " in out and "B over A: " in out


@pytest.mark.slow
def test_a_command_that_crashes_is_named_with_its_last_words(benched: Callable[..., int], capsys: Capture) -> None:
    Path("crash.py").write_text("raise SystemExit('there is no such data set')\n")
    assert benched("python train.py 16 0", "python crash.py") == 1
    said = " ".join(capsys.readouterr().err.split())
    assert "B ended with 1" in said and "there is no such data set" in said
