"""Exports read back by each tool's own library; where one is not installed, the line that says which to install."""

from __future__ import annotations

import importlib.util
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from planted import Planted, plant
from wandb_offline import offline, rows

from analysis import commands, export, text
from analysis.__main__ import main
from analysis.frames import results

ONE = Planted("single", speed=100.0)
TWO = Planted("horovod", workers=2, allreduce="fp32", speed=160.0)
LOST = replace(TWO, batch_per_worker=64, status="oom", speed=None, reason="CUDA out of memory")
REPEATS = 3


@pytest.fixture
def study(tmp_path: Path) -> Path:
    return plant(tmp_path / "results", [ONE, TWO, LOST], baseline={"framework": "single"})


def configuration(one: Planted) -> str:
    return one.trial().configuration


def exported(study: Path, tool: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Export for real, or skip where the tool's library is not installed."""
    needed = {"tensorboard": ["tensorboard"], "mlflow": ["mlflow", "sqlalchemy", "alembic"], "wandb": ["wandb"]}[tool]
    if lacking := [name for name in needed if importlib.util.find_spec(name) is None]:
        pytest.skip(f"{', '.join(lacking)} not installed (pip install 'scaling-study[export]')")
    assert main(["export", str(study), f"--{tool}", str(folder)]) == 0
    assert "3 runs in " in capsys.readouterr().out


def test_a_run_is_a_configuration_and_a_point_a_repeat(study: Path) -> None:
    made = {run.name: run for run in export.runs(results.read(study))}
    assert set(made) == {configuration(one) for one in (ONE, TWO, LOST)}
    two = made[configuration(TWO)]
    assert two.parameters["workers"] == 2 and type(two.parameters["workers"]) is int
    assert two.parameters["allreduce"] == "fp32" and "zero_stage" not in two.parameters
    assert two.metrics["speedup"] == pytest.approx(1.6, rel=0.05)
    assert [point.repeat for point in two.points] == [1, 2, 3] and two.points[0].at > 1e9
    mean = sum(point.metrics["samples_per_second"] for point in two.points) / REPEATS
    assert two.metrics["samples_per_second"] == pytest.approx(mean)
    lost = made[configuration(LOST)]
    assert not lost.ok and lost.tags["status"] == "oom" and "samples_per_second" not in lost.metrics
    assert lost.tags["reason"] == "CUDA out of memory" and lost.points == []


def test_tensorboard_reads_it_back(study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "boards"
    exported(study, "tensorboard", folder, capsys)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams import metadata

    def read(one: Planted) -> Any:
        events = EventAccumulator(str(folder / "planted" / text.file_name(configuration(one))))
        return events.Reload()

    two = read(TWO)
    assert [event.step for event in two.Scalars("repeat/samples_per_second")] == [1, 2, 3]
    assert two.Scalars("speedup")[0].value == pytest.approx(1.6, rel=0.05)
    content = two.SummaryMetadata(metadata.SESSION_START_INFO_TAG).plugin_data.content
    asked = metadata.parse_session_start_info_plugin_data(content).hparams
    assert asked["workers"].number_value == 2 and asked["framework"].string_value == "horovod"
    lost = metadata.parse_session_start_info_plugin_data(
        read(LOST).SummaryMetadata(metadata.SESSION_START_INFO_TAG).plugin_data.content
    )
    assert lost.hparams["status"].string_value == "oom"


@pytest.mark.slow
def test_mlflow_reads_it_back(study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "ml flow"
    exported(study, "mlflow", folder, capsys)
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{folder / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("planted")
    found = {run.data.tags["configuration"]: run for run in client.search_runs([experiment.experiment_id])}
    assert set(found) == {configuration(one) for one in (ONE, TWO, LOST)}
    two = found[configuration(TWO)]
    assert two.data.params["workers"] == "2" and two.data.metrics["speedup"] == pytest.approx(1.6, rel=0.05)
    assert two.info.status == "FINISHED" and found[configuration(LOST)].info.status == "FAILED"
    history = client.get_metric_history(two.info.run_id, "repeat/samples_per_second")
    assert sorted(point.step for point in history) == [1, 2, 3]


def test_runs_of_wandb_from_two_folders_or_machines_do_not_overwrite_each_other(study: Path) -> None:
    first, again = (export.runs(results.read(study))[0] for _ in range(2))
    later = replace(first, at=first.at + 3600)
    elsewhere = replace(first, tags={**first.tags, "machine": "64 cores"})
    ids = [export.wandb_id("planted", run) for run in (first, later, elsewhere)]
    assert len(set(ids)) == 3 and export.wandb_id("planted", again) == ids[0] != export.wandb_id("other", first)


@pytest.mark.slow
def test_wandb_leaves_offline_runs(study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "wb"
    exported(study, "wandb", folder, capsys)
    files = list((folder / "planted" / "wandb").glob("offline-run-*/*.wandb"))
    assert len(files) == 3
    asked, measured, ended = {}, {}, {}
    for path in files:
        records = list(offline(path))
        (run,) = (record.run for record in records if record.WhichOneof("record_type") == "run")
        config = {item.key: json.loads(item.value_json) for item in run.config.update}
        name = config["configuration"]
        asked[name] = config
        measured[name] = [point["repeat/samples_per_second"] for point in rows(path)]
        ended[name] = next(r.exit.exit_code for r in records if r.WhichOneof("record_type") == "exit")
    assert set(asked) == {configuration(one) for one in (ONE, TWO, LOST)}
    two = asked[configuration(TWO)]
    assert two["workers"] == 2 and two["framework"] == "horovod" and two["status"] == "ok"
    (truth,) = (run for run in export.runs(results.read(study)) if run.name == configuration(TWO))
    assert measured[configuration(TWO)] == [point.metrics["samples_per_second"] for point in truth.points]
    assert measured[configuration(LOST)] == [] and ended[configuration(LOST)] == 1 and ended[configuration(TWO)] == 0
    assert b"speedup" in b"".join(path.read_bytes() for path in files)


@pytest.mark.slow
@pytest.mark.parametrize("tool", list(commands.TOOLS))
def test_the_same_place_twice_is_refused(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], tool: str
) -> None:
    exported(study, tool, tmp_path / "out", capsys)
    assert main(["export", str(study), f"--{tool}", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and "is there already: remove it, or name another folder" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("tool", list(commands.TOOLS))
def test_a_library_that_is_missing_is_named(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tool: str
) -> None:
    tools = ("tensorboard", "mlflow", "wandb")
    for name in (*tools, *[loaded for loaded in sys.modules if loaded.split(".")[0] in tools]):
        monkeypatch.setitem(sys.modules, name, None)
    assert main(["export", str(study), f"--{tool}", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: --{tool} needs a library that is not installed: pip install ") and tool in error
    assert not (tmp_path / "out").exists()


def test_one_tool_is_asked_for_and_a_results_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for wrong in ([], ["--mlflow", "a", "--wandb", "b"]):
        assert main(["export", str(tmp_path), *wrong]) == 2
        assert "give exactly one of --tensorboard, --mlflow, --wandb" in capsys.readouterr().err
    assert main(["export", str(tmp_path), "--mlflow", str(tmp_path / "out")]) == 2
    assert "is not a results folder" in capsys.readouterr().err
