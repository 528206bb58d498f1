"""`--dry-run`: what one needs to know comes first, what is the same is said once, and it fits 80 columns."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from scaling_study import cli
from scaling_study.commands import options
from scaling_study.machine import Machine
from scaling_study.settings import CHECKOUT

STUDY = """
study: tiny
parity: false
sweeps:
  - {framework: single, data: synthetic, matrix: {model: [resnet8], batch_per_worker: [4, 8]}}
  - {framework: torch_ddp, data: synthetic, matrix: {model: [resnet8], batch_per_worker: [4, 8], workers: [2, 4]}}
"""
Shown = Callable[..., str]


@pytest.fixture
def shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], machine: Callable[..., Machine]
) -> Shown:
    """shown("--dry-run"): the text of a dry run on two cores, 80 columns wide."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(options, "this_machine", machine)
    Path("tiny.yaml").write_text(STUDY)

    def said(*words: str, study: str = "tiny.yaml") -> str:
        assert cli.run_sweep([study, *words]) == 0
        return capsys.readouterr().out

    return said


def test_machine_time_and_what_is_skipped_come_before_configurations_and_three_commands(shown: Shown) -> None:
    said = shown("--dry-run")
    places = [said.index(word) for word in ("Machine: 2 cores", "Estimated time", "Skipped", "Same in all", "Commands")]
    assert places == sorted(places) and said.startswith("tiny: 14 trials of 6 configurations")
    words = " ".join(said.split())
    assert "Skipped here, 2 of 6 configurations: torch_ddp (2): 4 workers need 4 cores, this machine has 2" in words
    assert "Same in all: model resnet8, launches 3" in words
    assert said.count("--model resnet8") == 3 and said.endswith("\n  1 more: --commands\n")
    assert not Path("results").exists()


def test_all_commands_and_each_that_is_skipped_are_an_option(shown: Shown) -> None:
    said = shown("--commands")
    assert said.count("--model resnet8") == 4 and said.count("skipped: torch_ddp resnet8 batch ") == 2
    assert "more:" not in said


def test_an_estimate_that_is_the_same_for_all_is_said_once(shown: Shown) -> None:
    assert "estimate" in shown("--dry-run")
    said = shown("--dry-run", "--where", "framework=single")
    assert " each\n" in said and "estimate" not in said
    one = shown("--dry-run", "--where", "framework=single,batch_per_worker=4")
    assert "The configuration: framework single, model resnet8, batch 4, workers 1" in one


def test_as_many_parity_checks_are_listed_as_are_said(shown: Shown) -> None:
    keys = "model: [resnet8_groupnorm], workers: [2], gradients: [fp32, fp16]"
    Path("checked.yaml").write_text(
        f"study: a\nsweeps:\n  - {{framework: single}}\n  - {{framework: torch_ddp, matrix: {{{keys}}}}}\n"
    )
    said = " ".join(shown("--dry-run", study="checked.yaml").partition("Parity checks first, ")[2].split())
    count, names = said.partition("Commands,")[0].split(" of them: ")
    listed = [int(number or 1) for number in re.findall(r"\w+ resnet\w+(?: \((\d+) checks\))?", names)]
    assert sum(listed) == int(count) and max(listed) > 1 and len(listed) > 1


@pytest.mark.parametrize("study", ["eight_gpus", "parallelism"])
def test_many_keys_fit_80_columns_with_each_configuration_on_one_line(shown, study, machine, monkeypatch):
    libraries = dict.fromkeys(("torch", "torchvision", "horovod", "deepspeed", "transformers", "tokenizers"), "99")
    monkeypatch.setattr(options, "this_machine", lambda: replace(machine(), libraries=libraries))
    said = shown("--dry-run", "--machine", "dgx-h100", study=str(CHECKOUT / "studies" / f"{study}.yaml"))
    before, _, commands = said.partition("\nCommands, one per")
    assert max(map(len, before.splitlines())) <= 80
    rows = re.findall(r"\d\.\d *$", before, re.MULTILINE)  # memory ends each
    alone = re.findall(r"\d GiB\s+a\s+GPU", before)  # one row has no table
    [more] = re.findall(r"^  (\d+) more", commands, re.MULTILINE)
    assert len(rows) + len(alone) == 3 + int(more) > 30
