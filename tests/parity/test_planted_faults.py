"""The gate against faults that are really there: two processes each, judged as the sweep judges, in a process apart.

A gate that lets one of these pass would let a study compare a framework that trains with one that does not.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from types import MappingProxyType

import forked
import pytest

from scaling_study import cli, frameworks
from scaling_study.launch import launchers
from scaling_study.records import store
from scaling_study.study import support
from scaling_study.trial import Trial, Window

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # eleven trials before the first answer
SCRIPTS = Path(__file__).parent / "scripts_that"
ASKED = Trial(framework="torch_ddp", model="resnet8", launcher="torchrun", device="cpu", data="synthetic")
GATE = replace(next(support.gates_of(ASKED)), window=Window(0, 4, 0.0, None, 4))  # in four steps each fault is seen

PLANTED = {  # script -> the check that names its fault, and what it says
    "sum_gradients": ("weights after step 1", "the update is 2.00 times the right one"),
    "reduce_nothing": ("weights after step 1", "off by"),
    "keep_old_gradients": ("loss of 4 steps", "step 3)"),
    "start_apart": ("loss of step 1", "(rank 1, step 1)"),
    "synchronise_batchnorm": ("loss of step 1", "(rank 0, step 1)"),
    "train_another_model": ("names, shapes and number of weights", "missing blocks.0.body.0.1.num_batches_tracked"),
    "freeze_a_parameter": ("every parameter is trained", "frozen: stem.0.0.weight"),
    "share_unequally": ("equally many samples on every rank", "[25080, 24920] an epoch"),
    "read_the_same_data": ("epoch 1: no sample twice", "25,000 samples are read again"),
    "keep_the_order": ("a new order every epoch", "rank 0 read both in the same"),
}


LIKE_ANOTHER = ("reduce_nothing", "start_apart")  # named by the check that names another fault here too
FAULTS = [pytest.param(name, marks=[pytest.mark.long] * (name in LIKE_ANOTHER), id=name) for name in PLANTED]


@pytest.fixture(scope="module")
def judged(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict]:
    """The parity.json of each script that is asked for. They are trials of one kind, so one reference serves all."""
    asked = [name for name in PLANTED if any(item.nodeid.endswith(f"[{name}]") for item in request.session.items)]
    folders = {name: tmp_path_factory.mktemp(name) for name in ["train_rightly", *asked]}
    for name, folder in folders.items():
        store.write_json(folder / "trial.json", {**GATE.to_dict(), "window": asdict(GATE.window)})
        program = [sys.executable, str(SCRIPTS / f"{name}.py"), *GATE.to_argv(), "--record", str(folder)]
        started = time.monotonic()
        run(launchers.torchrun(GATE, program, Path(sys.executable).parent).argv)
        print(f"{name}: {time.monotonic() - started:.1f} s")
    run([sys.executable, "-m", "scaling_study.parity.compare", *map(str, folders.values())])
    return {name: json.loads((folder / "parity.json").read_text()) for name, folder in folders.items()}


def run(argv: list[str] | tuple[str, ...]) -> None:
    done = forked.run(argv)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]


def test_the_same_script_without_a_fault_passes(judged):
    assert judged["train_rightly"]["verdict"] == "passed", judged["train_rightly"]
    assert len(judged["train_rightly"]["checks"]) == 14


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_caught_and_named(judged, fault):
    check, detail = PLANTED[fault]
    verdict = judged[fault]["verdict"]
    assert verdict.startswith(f"{check}: ") and detail in verdict, verdict


OF_OTHER_ALGORITHMS = {  # script -> what is asked, and the check that names its fault
    "forget_what_was_left_out": (replace(ASKED, workers=2, allreduce="powersgd4"), "loss of 10 steps: ", "step 3)"),
    "step_from_stale_weights": (
        replace(ASKED, framework="diloco", workers=2, sync_every=8, outer="nesterov"), "loss of 10 steps: ", "step 7)",
    ),
}  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("fault", OF_OTHER_ALGORITHMS)
def test_a_fault_of_an_algorithm_is_caught_by_the_same_algorithm_in_one_process(fault, tmp_path):
    asked, check, detail = OF_OTHER_ALGORITHMS[fault]
    *_, gate = support.gates_of(asked)
    store.write_json(tmp_path / "trial.json", {**gate.to_dict(), "window": asdict(gate.window)})
    program = [sys.executable, str(SCRIPTS / f"{fault}.py"), *gate.to_argv(), "--record", str(tmp_path)]
    run(launchers.torchrun(gate, program, Path(sys.executable).parent).argv)
    run([sys.executable, "-m", "scaling_study.parity.compare", str(tmp_path)])
    said = store.load(tmp_path / "parity.json")
    assert said["verdict"].startswith(check) and detail in said["verdict"], said["verdict"]
    assert said["reference"] == support.reference_of(vars(gate)) != support.ONE_PROCESS


def test_every_planted_fault_is_tested():
    assert {path.stem for path in SCRIPTS.glob("*.py")} == {"__init__", "train_rightly", *PLANTED, *OF_OTHER_ALGORITHMS}


STUDY = """
study: planted
measure: {timeout_seconds: 600}
sweeps:
  - {framework: single, model: resnet8, data: synthetic}
  - {framework: torch_ddp, model: resnet8, data: synthetic, workers: 2}
"""


@pytest.mark.long
@pytest.mark.usefixtures("forked_starts")
def test_one_command_runs_every_gate_and_fails_with_the_one_that_fails(tmp_path, monkeypatch, capsys):
    """The whole way: study file, sweep, launcher, planted script, judge, table, exit code."""
    wrong = replace(frameworks.FRAMEWORKS["torch_ddp"], script=str(SCRIPTS / "sum_gradients.py"))
    planted = MappingProxyType({**frameworks.FRAMEWORKS, "torch_ddp": wrong})
    monkeypatch.setattr(launchers, "FRAMEWORKS", planted)
    (tmp_path / "study.yaml").write_text(STUDY)
    asked = ["--study", str(tmp_path / "study.yaml"), "--results", str(tmp_path)]
    assert cli.parity(asked) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "single resnet8 1 none fp64 python passed weights after step 10: off by" in out
    assert "torch_ddp resnet8 2 fp32 fp64 torchrun failed weights after step 1: off by" in out
    assert "the update is 2.00 times the right one" in out

    monkeypatch.undo()  # the fault is mended: what has passed is kept, what has not is run anew
    assert cli.parity(asked) == 0
    out = capsys.readouterr().out
    assert "kept" in out and "failed" not in out
