"""The published layout, in Markdown, CSV and the terminal."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from planted import Planted, plant, published_study, ten_frameworks
from rich.console import Console

from analysis import terminal
from analysis.frames import results
from analysis.show import layout, notes
from analysis.views import speedup, throughput
from scaling_study.records.schema import IMPLIED

TWO = Planted("horovod", workers=2, allreduce="fp32", speed=160.0)
HALF = replace(TWO, allreduce="fp16", speed=200.0)
ONE = Planted("horovod", speed=100.0)


def markdown_rows(text: str) -> list[list[str]]:
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_the_fastest_is_bold_and_of_equals_none_is(tmp_path: Path) -> None:
    alike = [replace(one, batch_per_worker=64, speed=170.0, noise=0.03) for one in (TWO, HALF)]
    done = results.read(plant(tmp_path, [ONE, TWO, HALF, *alike, replace(ONE, batch_per_worker=64)]))
    cells = throughput.listing(done, "resnet18").cells
    assert cells[32, "2 workers, fp16"].mark == throughput.BEST
    assert cells[32, "2 workers, fp32"].mark == ""
    assert {cells[64, f"2 workers, {p}"].mark for p in ("fp16", "fp32")} == {throughput.ALIKE}, "of two, none is bold"
    assert cells[64, "1 worker"].mark == ""
    rows = {batch: [replace(one, batch_per_worker=batch) for one in (ONE, HALF)] for batch in (32, 64)}
    tied = results.read(plant(tmp_path / "tied", [*rows[32], *rows[64]]))
    assert throughput.listing(tied, "resnet18").best_row is None, "no row is starred where another may be as fast"
    apart = results.read(plant(tmp_path / "apart", [*rows[32], rows[64][0], replace(rows[64][1], speed=260.0)]))
    assert throughput.listing(apart, "resnet18").best_row == 64


def test_what_was_only_implied_is_told_from_what_was_measured(tmp_path: Path) -> None:
    oom = replace(HALF, status="oom", speed=None, reason="out of memory", repeats=1)
    reason = f"{IMPLIED}batch_per_worker=32 was out of memory ({oom.trial().id})"
    larger = replace(oom, batch_per_worker=64, reason=reason, repeats=3)
    done = results.read(plant(tmp_path, [ONE, oom, larger, replace(ONE, batch_per_worker=64)], baseline={"workers": 1}))
    for table in (throughput.listing(done, "resnet18"), speedup.listing(done, "resnet18")):
        assert table.cells[32, "2 workers, fp16"].text == "oom"
        assert table.cells[64, "2 workers, fp16"].text == "oom (implied)"
    text = layout.markdown(throughput.listing(done, "resnet18"))
    assert "- oom (out of memory): 2 workers, fp16, batch 32." in text
    assert f"- oom ({reason}): 2 workers, fp16, batch 64." in text
    assert throughput.table(done, "resnet18")["2 workers, fp16"].tolist() == ["oom", "oom (implied)"]
    row = done.configurations.set_index("configuration").loc[larger.trial().configuration]
    assert (row.status, row.failures) == ("oom", "oom (implied): 3")
    assert row.speedup_reason == "not measured: oom (implied)"


def test_a_repeat_that_was_measured_speaks_for_a_configuration_before_those_that_were_implied(tmp_path: Path) -> None:
    """Repeats come in random orders: the first of a larger batch may have run before the smaller one failed."""
    folder = plant(tmp_path, [replace(ONE, status="oom", speed=None, reason=f"{IMPLIED}x", repeats=3)])
    path = folder / "trials" / ONE.trial(2).id / "record.json"
    path.write_text(path.read_text().replace(f"{IMPLIED}x", "CUDA out of memory"))
    (row,) = results.read(folder).configurations.to_dict("records")
    assert (row["reason"], row["failures"]) == ("CUDA out of memory", "oom: 1, oom (implied): 2")


@pytest.mark.parametrize(
    ("repeats", "marks"), [([3, 3], []), ([3, 2], ["STOPPED BY HAND"]), ([3], ["STOPPED BY HAND"])]
)
def test_a_study_that_was_stopped_says_so_in_every_title_while_something_of_it_is_missing(
    tmp_path: Path, repeats: list[int], marks: list[str]
) -> None:
    batches = [replace(ONE, batch_per_worker=batch, planned_repeats=3) for batch in (32, 64)]
    planted = [replace(one, repeats=count) for one, count in zip(batches, repeats, strict=False)]
    ids = [one.trial().configuration for one in batches]
    done = results.read(plant(tmp_path, planted, stopped="SIGINT", configurations=ids))
    assert done.marks == marks
    assert throughput.listing(done, "resnet18").title.endswith(f"{', '.join(['planted', *marks])})")
    assert notes.source(done).endswith("; ".join(["; cifar10 data", *marks]))
    stopped = done.study.model_copy(update={"stopped": "SIGTERM"})
    assert replace(done, study=stopped).marks == [mark.replace("HAND", "SIGTERM") for mark in marks]


def test_strong_scaling_has_rows_of_global_batch(tmp_path: Path) -> None:
    done = results.read(plant(tmp_path, [replace(ONE, batch_per_worker=64), TWO], scaling="strong"))
    table = throughput.listing(done, "resnet18")
    assert (table.row_name, table.rows) == ("global batch", (64,))
    assert next(iter(throughput.table(done, "resnet18"))) == "global_batch"


def test_more_columns_than_one_could_read_become_rows(tmp_path: Path) -> None:
    seeds = [replace(ONE, repeats=1, keys=(("seed", seed),)) for seed in range(30)]
    folder = plant(tmp_path, seeds)
    header, _, *body = markdown_rows(layout.markdown(throughput.listing(results.read(folder), "resnet18")))
    assert header == ["batch per worker", "configuration", "samples/s"]
    assert [row[1] for row in body[:3]] == ["1 worker, seed 0", "1 worker, seed 1", "1 worker, seed 2"]
    assert len(body) == 30
    assert "seed 29" in shown(folder, width=80)


def shown(folder: Path, width: int = 120) -> str:
    stream = io.StringIO()
    terminal.show(results.read(folder), Console(file=stream, width=width))
    return stream.getvalue()


def test_the_terminal_shows_the_same(tmp_path: Path) -> None:
    planted, about = published_study()
    text = shown(plant(tmp_path, planted, **about))
    assert "Throughput of resnet18" in text
    assert "Speed-up of resnet50 over horovod, 1 worker" in text
    assert "★ 512" in text
    assert "timeout (no step within 600 s)" in text
    assert " ".join(text.split()).count("Student t") == 1, "what holds for all tables is said once"


def test_the_terminal_says_when_there_is_nothing_yet(tmp_path: Path) -> None:
    assert "no finished trial yet" in shown(plant(tmp_path, []))


@pytest.mark.parametrize("status", ["failed", "unsupported"])
def test_a_study_in_which_all_failed_still_has_its_table(tmp_path: Path, status: str) -> None:
    lost = [replace(one, status=status, speed=None, reason="no") for one in (ONE, TWO)]
    folder = plant(tmp_path, lost, baseline={"workers": 1})
    assert f"{status} (no)" in layout.markdown(throughput.listing(results.read(folder), "resnet18"))
    assert status in shown(folder)


def test_a_machine_that_was_not_quiet_is_said_under_every_table(tmp_path: Path) -> None:
    folder = plant(tmp_path, [ONE])
    assert "not quiet" not in shown(folder, width=120)
    for path in folder.glob("trials/*/record.json"):
        record = json.loads(path.read_text())
        seconds = sum(record["ranks"][0]["step_seconds"])
        record["ranks"][0] |= {"own_cpu_seconds": seconds, "host_cpu_seconds": 1.8 * seconds}
        path.write_text(json.dumps(record))
    assert "The machine was not quiet: during 3 of 3 runs" in " ".join(shown(folder, width=120).split())


def test_many_frameworks_are_one_long_table_in_the_terminal(tmp_path: Path) -> None:
    folder = plant(tmp_path, ten_frameworks(), baseline={"framework": "single"})
    text = shown(folder, width=100)
    lines = [
        line for line in text.splitlines() if line.startswith("│") and "deepspeed_zero, 2 workers, fp16, ZeRO-3" in line
    ]
    assert len(lines) == 2, "one line for each batch size, with throughput and speed-up"
    assert "%" in lines[0] and "±" in lines[0]
    assert all(len(line) <= 100 for line in text.splitlines())
    assert "not comparable ‡" in text
    assert text.count("Speed-up of resnet18 over single") == 1


def test_a_wide_table_becomes_long_where_the_terminal_is_narrow(tmp_path: Path) -> None:
    workers = [
        replace(ONE, workers=count, allreduce="fp32", keys=(("device", "cuda"),)) for count in (2, 3, 4, 5, 6, 8)
    ]
    folder = plant(tmp_path, workers)
    assert "┃ configuration" not in shown(folder, width=120)
    assert "┃ configuration" in shown(folder, width=60)
