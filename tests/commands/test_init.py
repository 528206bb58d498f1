"""`scaling-study init`: a first study that runs as it is, and follows the device that it meets."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from scaling_study import cli
from scaling_study.commands import init, options
from scaling_study.machine import Machine, this_machine

LIBRARIES = dict.fromkeys(("torch", "torchvision", "torchmetrics", "transformers", "tokenizers"), "99")
TWO = Machine(2, "Xeon", 8 << 30, (), LIBRARIES)
FOUR_H100 = replace(TWO, cores=64, gpus=("NVIDIA H100 80GB HBM3",) * 4)
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Work in an empty folder, on this machine."""
    monkeypatch.chdir(tmp_path)

    def place(machine: Machine) -> None:
        for module in (init, options):
            monkeypatch.setattr(module, "this_machine", lambda: machine)

    return place


def dry_run(capsys: Capture, *words: str) -> list[dict[str, Any]]:
    assert cli.main(["run", *words, "--dry-run", "--json"]) == 0
    trials: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["trials"]
    return trials


def test_the_first_study_of_a_gpu_computes_in_bf16_compiled(at, capsys, monkeypatch):
    at(FOUR_H100)
    assert cli.main(["init"]) == 0
    said = capsys.readouterr().out
    assert "4 configurations" in said and said.endswith("scaling-study run study.yaml --dry-run\n")
    trials = dry_run(capsys, "study.yaml")
    assert {(t["framework"], t["workers"]) for t in trials} == {("single", 1), *(("torch_ddp", n) for n in (1, 2, 4))}
    seen = {(t["device"], t["precision"], t["memory_format"], t["compile"], t["unsupported"]) for t in trials}
    assert seen == {("cuda", "bf16", "channels_last", True, "")}
    at(TWO)
    elsewhere = dry_run(capsys, "study.yaml", "--machine", "dgx-h100")
    assert {(t["device"], t["precision"], t["compile"]) for t in elsewhere} == {("cuda", "bf16", True)}
    seen = {(t["device"], t["precision"], t["memory_format"], t["compile"]) for t in dry_run(capsys, "study.yaml")}
    assert seen == {("cpu", "fp32", "contiguous", False)}
    monkeypatch.setenv("COLUMNS", "200")
    assert cli.main(["run", "study.yaml", "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert all(word in shown for word in ("precision", "memory_format", "compile", "contiguous"))


def test_a_line_that_is_commented_out_is_right_once_its_hash_is_gone(at: Any, capsys: Capture) -> None:
    at(TWO)
    assert cli.main(["init"]) == 0
    text = Path("study.yaml").read_text()
    choices = re.findall(r"^# (\w+): [^\n]*#", text, re.MULTILINE)
    assert choices == ["measure", "parity", "train"]
    capsys.readouterr()
    for key in choices:
        Path("changed.yaml").write_text(text.replace(f"\n# {key}: ", f"\n{key}: "))
        plans = []
        for name in ("study.yaml", "changed.yaml"):
            assert cli.main(["run", name, "--dry-run", "--json"]) == 0
            plans.append(json.loads(capsys.readouterr().out))
        assert plans[0] != plans[1], key


def test_options_choose_and_what_is_wrong_leaves_no_file(at: Any, capsys: Capture) -> None:
    at(this_machine())
    chosen = ["--model", "gpt2_tiny", "--frameworks", "torch_fsdp2, deepspeed_zero", "--workers", "2,3"]
    assert cli.main(["init", "mine.yaml", *chosen]) == 0
    capsys.readouterr()
    trials = {(t["framework"], t["model"], t["workers"]) for t in dry_run(capsys, "mine.yaml")}
    assert trials == {("single", "gpt2_tiny", 1)} | {
        (name, "gpt2_tiny", workers) for name in ("torch_fsdp2", "deepspeed_zero") for workers in (2, 3)
    }
    before = Path("mine.yaml").read_text()
    assert cli.main(["init", "mine.yaml"]) == 2 and Path("mine.yaml").read_text() == before
    assert "mine.yaml exists" in " ".join(capsys.readouterr().err.split())
    for words, begins, said in (
        (["--model", "resnet88"], "--model: 'resnet88'", "did you mean 'resnet8' or 'resnet18'?"),
        (["--frameworks", "horovodd"], "--frameworks: 'horovodd'", "did you mean 'horovod'?"),
        (["--workers", "two"], "--workers: 'two'", "input should be a valid integer"),
        (["--model", "nofile.py:load"], "--model nofile.py:load: there is no file", "nofile.py in "),
    ):
        assert cli.main(["init", "wrong.yaml", *words]) == 2 and not Path("wrong.yaml").exists()
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) == 1 and lines[0].startswith(f"error: {begins}") and said in lines[0], lines
        assert "wrong.yaml" not in lines[0], "which is not there"
