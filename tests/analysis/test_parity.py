"""Gates in results.csv, their verdicts behind every other row, and what a failed one takes from its framework."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from planted import Planted, plant, plant_gates, record
from planted_flaws import Flawed, flaws, plant_flawed
from rich.console import Console

import analysis
from analysis.frames import configurations, results, trials
from analysis.frames.results import Results
from analysis.report import trust
from analysis.show import layout
from analysis.terminal import show
from analysis.views import allreduce_gain, memory, speedup, throughput
from scaling_study.records import store
from scaling_study.records.schema import Record
from scaling_study.records.store import read_record, write_record
from scaling_study.study import support

SINGLE = Planted("single", speed=100.0)
DDP = Planted("torch_ddp", workers=2, allreduce="fp32", speed=180.0)
HALF = replace(DDP, allreduce="fp16", speed=190.0)
HOROVOD = Planted("horovod", workers=2, allreduce="fp32", speed=170.0)
SLOW = Planted("fairscale_pipe", workers=2, speed=250.0, keys=(("stages", 2), ("micro_batches", 4)))
FAULT = "loss of every step: off by 1.2e-03 at step 2"
ALL = [SINGLE, DDP, HALF, HOROVOD]


def study(folder: Path, planted: list[Planted], faults: Mapping[str, str] | None = None, **about: Any) -> Results:
    plant(folder, planted, **({"baseline": {"framework": "single"}} | about))
    plant_gates(folder, planted, faults)
    return results.read(folder)


def row_of(read: Results, one: Planted) -> pd.Series:
    return read.configurations[read.configurations.configuration == one.trial().configuration].iloc[0]


def made(one: Planted = DDP) -> Record:
    return record(one, one.trial(), one.speed, "s", np.random.default_rng(0))


def terminal(folder: Path, width: int = 100) -> str:
    stream = io.StringIO()
    show(results.read(folder), Console(file=stream, width=width))
    return " ".join(stream.getvalue().split())


# --- rows ---


@pytest.mark.slow
def test_a_gate_is_a_row_of_results_csv_and_of_nothing_else(tmp_path: Path) -> None:
    done = study(tmp_path, ALL, configurations=[one.trial().configuration for one in ALL])
    asked = support.needed(one.trial() for one in ALL)
    assert sorted(done.gates.trial) == sorted(gate.id for gate in asked)
    assert set(done.gates.parity) == {"passed"}
    assert len(done.configurations) == 4 and len(done.runs) == 12
    assert done.older == 0, "a gate is no configuration that was taken out of the study"
    analysis.write(tmp_path)
    assert len(pd.read_csv(tmp_path / "results.csv")) == 12 + len(asked)
    assert len(pd.read_csv(tmp_path / "configurations.csv")) == 4
    assert "resnet8_groupnorm" not in " ".join(path.name for path in (tmp_path / "tables").iterdir())


def test_a_row_names_the_gates_behind_it_and_their_verdict(tmp_path: Path) -> None:
    done = study(tmp_path, ALL)
    for one in ALL:
        rows = done.trials[done.trials.configuration == one.trial().configuration]
        assert set(rows.parity) == {"passed"}
        assert set(rows.parity_gates) == {";".join(support.gate_ids(one.trial()))}
    assert len(support.gate_ids(HALF.trial())) == 2, "16 bits have a gate of their own"


def test_a_missing_gate_is_not_a_passed_one(tmp_path: Path) -> None:
    plant(tmp_path, ALL)
    plant_gates(tmp_path, [SINGLE, DDP])
    done = results.read(tmp_path)
    assert [row_of(done, one).parity for one in ALL] == ["passed", "passed", "not checked", "not checked"]
    text = layout.markdown(throughput.listing(done, "resnet18"))
    assert "Parity: single; torch_ddp, 2 workers, fp32 passed (2 checks)." in text
    assert "Parity: not checked: horovod; torch_ddp, 2 workers, fp16." in text


@pytest.mark.parametrize(
    ("status", "verdict", "said"),
    [
        ("failed", FAULT, FAULT),
        ("ok", "passed", "passed"),
        ("timeout", "", "its parity check ended with timeout (not finished)"),
        ("unsupported", "", "not checked"),
        ("ok", "", "not checked"),
    ],
)
def test_what_became_of_a_gate_is_its_verdict(status: str, verdict: str, said: str) -> None:
    reason = "not finished" if status == "timeout" else ""
    assert trials.own(replace(made(), status=status, parity=verdict, reason=reason)) == said


def read_with(tmp_path: Path, **changes: Any) -> Record:
    """A record whose JSON has these keys in place of others."""
    store.write_json(tmp_path / "record.json", made().to_dict() | changes)
    return read_record(tmp_path / "record.json")


def test_records_older_than_the_new_keys_have_their_defaults(tmp_path: Path) -> None:
    new = made()
    younger = ("zero_stage", "compile", "accumulation", "find", "allocator")
    before = read_with(tmp_path, trial={k: v for k, v in new.trial.to_dict().items() if k not in younger}, window={})
    assert before.trial == replace(DDP.trial(), allocator="system")
    assert trials.row(before)["accumulation"] == 1
    assert trials.row(before)["compile"] is False
    assert trials.behind(before, {}) == trials.behind(new, {})


@pytest.mark.parametrize("change", [{"framework": "tomorrow"}, {"model": "tomorrow"}])
def test_what_this_version_does_not_know_is_read_and_not_checked(tmp_path: Path, change: dict[str, Any]) -> None:
    known = made()
    strange = read_with(tmp_path, trial={**known.trial.to_dict(), **change})
    assert trials.behind(strange, {}) == {"parity": "not checked", "parity_gates": ""}
    later = {"trial": {**known.trial.to_dict(), "a_later_key": 1}, "window": {"a_later_key": 1}}
    assert trials.behind(read_with(tmp_path, **later), {}) == trials.behind(known, {})


# --- what a fault takes away ---


def test_a_framework_that_failed_claims_nothing_and_says_so_everywhere(tmp_path: Path) -> None:
    fast = replace(HOROVOD, speed=999.0)
    done = study(tmp_path, [SINGLE, DDP, HALF, fast], {"horovod": FAULT})
    row = row_of(done, fast)
    assert row.not_comparable == f"NOT COMPARABLE: parity failed: {FAULT}"
    assert row.speedup_reason == row.not_comparable
    assert pd.isna(row.speedup) and pd.isna(row.efficiency)
    table = throughput.listing(done, "resnet18")
    cell = table.cells[32, "horovod, 2 workers, fp32"]
    assert (cell.sign, cell.mark) == ("†", "")
    assert table.cells[32, "torch_ddp, 2 workers, fp16"].mark == layout.BEST
    assert f"- † NOT COMPARABLE: parity failed: {FAULT} (horovod)." in layout.markdown(table)
    assert "† |" in layout.markdown(table)
    assert "horovod, 2 workers, fp32 †" in throughput.table(done, "resnet18")
    shown = speedup.listing(done, "resnet18")
    assert shown.cells[32, "horovod, 2 workers, fp32"].signed == "not comparable †"
    assert not any("no speed-up: NOT" in note for note in shown.notes), "said once"
    shown = terminal(tmp_path)
    assert "not comparable †" in shown and FAULT in shown
    assert "Parity: all others passed (3 checks)." in shown


def test_a_fault_of_one_precision_leaves_the_others_alone(tmp_path: Path) -> None:
    plant(tmp_path, ALL, baseline={"framework": "single"})
    plant_gates(tmp_path, ALL)
    (sixteen,) = set(support.gate_ids(HALF.trial())) - set(support.gate_ids(DDP.trial()))
    path = tmp_path / "trials" / sixteen / "record.json"
    write_record(path.parent, replace(read_record(path), parity="the update of step 1: off by 4e-01", status="failed"))
    done = results.read(tmp_path)
    assert row_of(done, HALF).not_comparable and not row_of(done, DDP).not_comparable
    (said,) = configurations.sentences(done.configurations)
    assert said.endswith("(torch_ddp, 2 workers, fp16).")
    pair = allreduce_gain.gains_of(done.configurations, 0.02).iloc[0]
    assert pair.verdict == "not comparable" and pd.isna(pair.gain)


def test_a_baseline_that_failed_gives_nobody_a_speedup(tmp_path: Path) -> None:
    done = study(tmp_path, ALL, {"single": FAULT})
    assert done.configurations.speedup.isna().all()
    assert row_of(done, DDP).speedup_reason.startswith(f"its baseline: NOT COMPARABLE: parity failed: {FAULT}")


def test_speed_that_a_cpu_holds_back_is_shown_and_not_compared(tmp_path: Path) -> None:
    planted = [*ALL, replace(SLOW, counted=True), replace(DDP, counted=True)]
    done = study(tmp_path, planted)
    row = row_of(done, SLOW)
    assert (row.parity, configurations.sign(row)) == ("passed", "‡")
    assert row.speedup_reason.startswith("speed not comparable: on a CPU all of FairScale's stages")
    table = throughput.listing(done, "resnet18")
    assert {cell.sign for (_, series), cell in table.cells.items() if series.startswith("fairscale_pipe")} == {"‡"}
    assert any(note.startswith("‡ speed not comparable: on a CPU all of FairScale's stages") for note in table.notes)
    assert any(note.startswith("Parity: all frameworks passed (") for note in table.notes)
    listing = memory.listing(done, "resnet18")
    assert listing and "‡" not in layout.markdown(listing), "its memory counts"
    gpu = replace(SLOW, keys=(*SLOW.keys, ("device", "cuda")))
    assert row_of(study(tmp_path / "gpu", [SINGLE, gpu]), gpu).not_comparable == ""


# --- gates alone ---


@pytest.mark.slow
@pytest.mark.parametrize(("faults", "failed"), [({}, 0), ({"horovod": FAULT}, 1), ({"torch_ddp": FAULT}, 2)])
def test_a_folder_of_gates_alone_renders(tmp_path: Path, faults: dict[str, str], failed: int) -> None:
    plant(tmp_path, [], configurations=[one.trial().configuration for one in ALL])
    count = len(plant_gates(tmp_path, ALL, faults))
    written = analysis.write(tmp_path)
    page = {"report.html", "report.md", "samples.npz"}
    assert {path.name for path in written} - page == {
        "results.csv", "configurations.csv", "throughput.png", "throughput.svg"
    }  # fmt: skip
    shown = terminal(tmp_path)
    assert f"no finished trial yet: {count} parity checks, nothing to draw yet" in shown
    assert f"Parity: {count - failed} of {count} checks passed." in shown
    assert shown.count("† NOT COMPARABLE: parity failed: loss") == len({*faults.values()})


# --- commands of a user's own, before which no gate can stand ---

COMMAND = (("command", "torchrun t.py"), ("data", "auto"))
COMMANDS = [
    Planted("command", "script:t.py", workers=workers, allreduce=wire, keys=COMMAND)
    for workers, wire in ((1, "none"), (2, "fp32"), (2, "fp16"))
]


def test_of_commands_parity_data_and_the_wire_are_empty_and_the_reason_is_said(tmp_path: Path) -> None:
    done = plant_flawed(tmp_path, [Flawed(each, {"data_source": "the command's own"}) for each in COMMANDS])
    assert {row["parity"] for row in done.rows} == {""} and not any(row["not_comparable"] for row in done.rows)
    assert sorted(row["series"] for row in done.rows) == ["1 worker", "2 workers", "2 workers, fp16"]
    text = layout.markdown(throughput.listing(done, "script:t.py"))
    assert "no parity check can run before them" in text
    assert not [words for words in ("not checked", "SYNTHETIC", " data;") if words in text]
    assert trust.parity_text(done).startswith("Parity is not known: no check can run before a command of your own")
    assert "parity" not in flaws(done)


def test_commands_beside_frameworks_take_nothing_from_what_is_said_of_these(tmp_path: Path) -> None:
    plant(tmp_path, [SINGLE, DDP, replace(COMMANDS[1], model="resnet18")])
    plant_gates(tmp_path, [SINGLE, DDP])
    done = results.read(tmp_path)
    text = layout.markdown(throughput.listing(done, "resnet18"))
    assert "Parity: all frameworks passed" in text and "Commands of your own: " in text
    assert trust.parity_text(done) == "Parity: 2 of 2 checks passed."
