"""python -m analysis predict: what it writes, what it says, and each thing that it declines, in one line."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from drawings import untidy
from planted import Planted, plant
from planted_networks import ALPHA, BETA, BUSY, plant_probe

from analysis.__main__ import main
from analysis.frames import results
from analysis.prediction import predict
from analysis.prediction.network import Link, ModelledNetwork
from analysis.prediction.predict import Asked, forecast
from analysis.views import prediction
from scaling_study.settings import CHECKOUT

ONE, TWO = Planted("horovod", speed=320.0), Planted("horovod", workers=2, allreduce="fp32", speed=600.0)
LINK = ["--bandwidth", "25Gbit", "--latency", "5us"]
HOSTS = [*LINK, "--per-host", "4", "--local-bandwidth", "80Gbit", "--local-latency", "2us"]


def predicted(folder: Path, *flags: str) -> int:
    return main(["predict", str(folder), "--workers", "4,64,512", *flags])


@pytest.mark.slow
def test_it_writes_a_table_and_a_figure_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = plant(tmp_path, [ONE, TWO, replace(ONE, model="resnet8", speed=900.0)])
    assert predicted(folder, *LINK) == 0
    names = {path.name for place in ("tables", "figures") for path in (folder / place).iterdir()}
    assert names == {"prediction.md", "prediction.csv", *(
        f"prediction-{model}.{ending}" for model in ("resnet8", "resnet18") for ending in ("png", "svg"))}  # fmt: skip
    frame = pd.read_csv(folder / "tables" / "prediction.csv")
    assert len(frame) == 2 * 2 * 3  # models, algorithms, counts
    assert (frame.efficiency <= 1).all() and (frame.exposed_seconds >= 0).all()
    assert (frame.interval_low < frame.samples_per_second).all() and (frame.hosts == frame.workers).all()


def test_a_hundred_thousand_workers_take_a_second(tmp_path: Path) -> None:
    folder = plant(tmp_path, [ONE])
    read, network = results.read(folder), ModelledNetwork(Link(5e-6, 1 / 3e9))
    forecast(read, folder, Asked((2,), ("ring",), network=network))  # what is imported on the way is paid once
    started = time.process_time()
    forecast(read, folder, Asked((100_000,), ("ring",), network=network))
    assert time.process_time() - started < 1


def test_options_are_heard(tmp_path: Path) -> None:
    folder = plant(tmp_path, [ONE, TWO])
    flags = ["--algorithm", "ring", "--gradients", "fp32,fp16", "--fusion-bytes", "1MiB", "--cycle", "5ms"]
    assert predicted(folder, *LINK, *flags, "--no-stragglers", "--crowding", "1.5", "--check", "-q") == 0
    text = (folder / "tables" / "prediction.md").read_text()
    assert "cycles of 5 ms, at most 1 MiB" in text and "1.50 x as long" in text
    frame = pd.read_csv(folder / "tables" / "prediction.csv")
    assert set(frame.allreduce) == {"fp32", "fp16"} and (frame.waiting_seconds == 0).all()


@pytest.mark.slow
def test_the_errors_behind_a_median_are_counted_and_the_worst_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Four of five as predicted, one measured at half of it."""
    quiet = [replace(one, noise=0.002, batch_per_worker=b) for one in (ONE, TWO) for b in (16, 32, 64, 128, 256)]
    slow = [replace(one, speed=320.0) if one.workers == 2 and one.batch_per_worker == 64 else one for one in quiet]
    folder = plant(tmp_path, [one if one.workers == 1 else replace(one, noise=0.08) for one in slow])
    assert main(["predict", str(folder), "--workers", "2", *LINK, "--algorithm", "ring", "--check"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "1 of 5 beyond it; worst: horovod, batch 64, fp32, 2 " in said
    made = forecast(
        results.read(folder), folder, Asked((2,), ("ring",), network=ModelledNetwork(Link(5e-6, 8 / 25e9)), check=True)
    )
    (worst,) = [one for one in made.checked if one.beyond_noise]
    points = f"{100 * worst.error:+.1f} % ({100 * worst.beyond_noise:.1f} points beyond the noise)"
    assert f"2 workers, {points}" in predict.summary(made.checked)


@pytest.mark.slow
def test_a_network_that_the_study_probed_needs_no_flags(tmp_path: Path) -> None:
    """Planted: 50 us and 2 GB/s for two workers on one host, four times as slow on busy cores."""
    folder = plant(tmp_path, [replace(ONE, framework="torch_ddp"), replace(TWO, framework="torch_ddp")])
    plant_probe(folder, repeats=3, launcher="torchrun")
    assert main(["predict", str(folder), "--workers", "2", "-q"]) == 0
    text = (folder / "tables" / "prediction.md").read_text()
    assert "on one host. Within a host of 2 workers" in text and "nothing known of several hosts" in text
    (network,) = {one.network for one in forecast(results.read(folder), folder, Asked((2,))).predictions}
    assert network.between == network.within and network.workers_per_host == 2
    assert network.between.latency_seconds == pytest.approx(ALPHA / 2, rel=0.1)
    assert network.between.seconds_per_byte == pytest.approx(BETA, rel=0.1)
    assert 0 < network.between.byte_spread < 0.1
    assert network.busy is not None
    assert network.busy.between.seconds_per_byte == pytest.approx(BUSY * BETA, rel=0.1)
    frame = pd.read_csv(folder / "tables" / "prediction.csv")
    assert frame[frame.workers == 2].measured_samples_per_second.notna().all()  # unasked: it is the same network


NO_NETWORK = (
    "holds no measured network. Give one: --bandwidth 25Gbit --latency 5us; or measure it: add a sweep with framework: "
    "network_probe to the study"
)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ([], NO_NETWORK),
        (["--bandwidth", "25Gbit"], "a link has both a bandwidth and a latency: --latency is missing"),
        (["--latency", "5us"], "a link has both a bandwidth and a latency: --bandwidth is missing"),
        ([*LINK, "--local-latency", "5us"], "a link has both a bandwidth and a latency: --local-bandwidth is missing"),
        ([*LINK, "--per-host", "4"], "--local-bandwidth and --local-latency are missing"),
        (["--per-host", "4"], "hosts need a link between them: --bandwidth and --latency are missing"),
        ([*LINK, "--local-bandwidth", "3GB/s", "--local-latency", "1us"], "--per-host is missing"),
        (["--workers", "4,x"], "Invalid value for '--workers': x in '4,x' is not a number of workers"),
        (["--algorithm", "star"], "'--algorithm': star is no allreduce algorithm known here: ring, tree,"),
        (["--allreduce", "int8"], "'--gradients': int8 is no precision of gradients: fp32, fp16, bf16"),
        (["--crowding", "0"], "'--crowding': 0 is no factor between 0.1 and 10"),
        (["--per-host", "0"], "'--per-host': Input should be greater than or equal to 1"),
    ],
)
def test_what_is_wrong_is_one_clear_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], said: str
) -> None:
    assert predicted(plant(tmp_path, [ONE]), *flags) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and said in error and error.count("\n") == 1
    assert not (tmp_path / "tables").exists()


def test_a_study_with_nothing_to_predict_from_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert predicted(plant(tmp_path / "a", [TWO]), *LINK) == 2
    assert "has nothing to predict from: horovod, resnet18, batch 32: no run with one worker" in capsys.readouterr().err
    assert predicted(plant(tmp_path / "b", []), *LINK) == 2
    assert "has nothing to predict from: no finished trial" in capsys.readouterr().err
    own = replace(ONE, framework="command", model="script:train.py")
    assert predicted(plant(tmp_path / "c", [own]), *LINK) == 2
    assert "command, batch 32: how it shares its gradients is not known: it was not run with" in capsys.readouterr().err
    assert predicted(tmp_path / "nowhere", *LINK) == 2
    assert "does not exist" in capsys.readouterr().err


@pytest.mark.slow
def test_tables_of_the_study_leave_it_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`python -m analysis RESULTS` deletes what it no longer makes, and never what predict made."""

    folder = plant(tmp_path, [ONE])
    assert predicted(folder, *LINK, "-q") == 0
    monkeypatch.setattr("analysis.views.figures.write", lambda *_: [])
    assert main([str(folder), "-q"]) == 0
    assert (folder / "tables" / "prediction.md").exists() and (folder / "figures" / "prediction-resnet18.png").exists()


def test_it_starts_without_torch_or_pandas() -> None:
    code = "import sys; from scaling_study.cli import analysis; analysis(['predict', '--help']); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=CHECKOUT, capture_output=True, text=True, check=True)
    assert not {"torch", "pandas", "matplotlib", "scipy"} & set(done.stdout.split())


BATCHES = [replace(one, batch_per_worker=batch) for one in (ONE, TWO) for batch in (32, 64, 128, 256)]
WIDE = ModelledNetwork(Link(5e-6, 1 / 3e9), Link(1e-6, 1e-10), 8)


@pytest.mark.long
@pytest.mark.parametrize("planted", [[ONE], [ONE, TWO], BATCHES[:1] + BATCHES[4:5], BATCHES], ids=["1", "2", "1b", "4"])
@pytest.mark.parametrize("workers", [(2,), (1, 2, 8, 64, 512, 4096, 32768, 100_000), (7, 8, 9)])
def test_no_text_of_the_figure_covers_another_or_leaves_the_sheet(
    tmp_path: Path, planted: list[Planted], workers: tuple[int, ...]
) -> None:
    folder = plant(tmp_path, planted)
    read = results.read(folder)
    made = forecast(read, folder, Asked(workers, network=WIDE, check=True))
    for title, drawn in prediction.forecast_figures(made, read).items():
        assert not untidy(drawn), title
