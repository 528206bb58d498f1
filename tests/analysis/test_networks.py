"""The network of a study: planted probes of known latency and bandwidth, from records to table, fit and figure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isclose
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from drawings import Figures, drawn, shown
from planted import Planted, plant
from planted_networks import ALPHA, BETA, BUSY, SIZES, plant_probe

import analysis
from analysis.frames import results
from analysis.frames.results import Results
from analysis.frames.trials import SkippedRecord
from analysis.statistics import network
from analysis.text import binary_size, byte_rate, duration
from analysis.views import network as network_module
from scaling_study.stats.network import COLLECTIVES


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A study with a training, to which probes are added."""
    return plant(tmp_path / "planted", [Planted(), Planted("horovod", workers=2, allreduce="fp32", speed=180.0)])


def listed(read: Results) -> network_module.Listing:
    made = network_module.listing(read)
    assert made is not None
    return made


def fits(folder: Path) -> Mapping[network.Key, Any]:
    return network.fit(results.read(folder))


# --- fit ---


def test_the_planted_latency_and_bandwidth_are_found(folder: Path) -> None:
    plant_probe(folder)
    found = fits(folder)
    assert set(found) == {(name, busy) for name in COLLECTIVES for busy in (False, True)}
    for (_, busy), made in found.items():
        factor = BUSY if busy else 1.0
        assert isclose(made.alpha_seconds, factor * ALPHA, rel_tol=0.03)
        assert isclose(made.beta_seconds_per_byte, factor * BETA, rel_tol=0.03)
        assert made.alpha_low < made.alpha_seconds < made.alpha_high and made.misfit < 0.02
        assert (made.min_bytes, made.max_bytes) == (1024, 16 << 20)


def test_a_call_takes_as_long_as_its_slowest_rank(folder: Path) -> None:
    """Each rank's own mean is 5 % below: ranks must be folded call by call, before the mean."""
    plant_probe(folder, noise=0.01)
    assert isclose(fits(folder)["allreduce", False].alpha_seconds, ALPHA, rel_tol=0.01)


@pytest.mark.slow
def test_repeats_that_differ_widen_the_intervals(folder: Path) -> None:
    """All sizes of a repeat are slower together: only the repeats themselves can tell."""
    plant_probe(folder, repeats=4, noise=0.01)
    steady = fits(folder)["allreduce", False]
    plant_probe(folder, repeats=4, noise=0.01, between=0.2)
    spread = fits(folder)["allreduce", False]
    assert spread.alpha_high - spread.alpha_low > 5 * (steady.alpha_high - steady.alpha_low)
    assert spread.beta_low <= BETA <= spread.beta_high


@pytest.mark.slow
def test_a_kink_is_said_in_the_table(folder: Path) -> None:
    plant_probe(folder, noise=0.01, offset=3 * ALPHA)
    made = fits(folder)["allreduce", False]
    assert made.misfit > network_module.STRAIGHT and made.worst_bytes in (1 << 16, 1 << 18)
    notes = listed(results.read(folder)).notes
    assert notes[0].startswith("**No straight line**: sizes are off it by more than 10 %") and "Gloo" in notes[0]


def test_without_a_kink_nothing_of_the_kind_is_said(folder: Path) -> None:
    plant_probe(folder, noise=0.01)
    assert "No straight line" not in " ".join(listed(results.read(folder)).notes)


@pytest.mark.slow
def test_several_probes_have_to_be_told_apart(folder: Path) -> None:
    first, other = plant_probe(folder), plant_probe(folder, launcher="horovodrun", controller="gloo")
    read = results.read(folder)
    with pytest.raises(ValueError, match="several networks were probed, say which: network_probe-"):
        network.fit(read)
    assert network.fit(read, first) and network.fit(read, other) and network.fit(read, "another") == {}
    assert [(probe.name, probe.launcher, probe.controller, probe.workers) for probe in network.probes(read)] == [
        ("Horovod (gloo), 2 workers", "horovodrun", "gloo", 2),
        ("torch.distributed (Gloo), 2 workers", "torchrun", None, 2),
    ]


def test_no_probe_has_no_fit(folder: Path) -> None:
    read = results.read(folder)
    assert network.fit(read) == {} and network_module.listing(read) is None and network_module.brief(read) is None
    assert network.table(read).empty


def test_one_size_has_no_fit_and_is_in_the_table(folder: Path) -> None:
    plant_probe(folder, sizes=[1024])
    read = results.read(folder)
    assert network.fit(read) == {} and len(network.table(read)) == 2 * 4
    assert "network" in Figures(read)


# --- table ---


@pytest.mark.parametrize(("workers", "factor"), [(2, 1.0), (3, 4 / 3)])
def test_bandwidths_follow_from_the_seconds(folder: Path, workers: int, factor: float) -> None:
    plant_probe(folder, workers=workers)
    made = network.table(results.read(folder))
    assert len(made) == 2 * 4 * len(SIZES) and list(made.columns) == list(network.COLUMNS)
    assert np.allclose(made.algorithm_bytes_per_second, made.bytes / made.seconds)
    ours = made[made.collective == "allreduce"]
    assert np.allclose(ours.bus_bytes_per_second, factor * ours.algorithm_bytes_per_second)
    first = made.iloc[0]
    assert (first.collective, first.busy, first.bytes, first.calls) == ("allreduce", False, 1024, 60)
    assert first.seconds_min <= first.seconds <= first.seconds_max and first.interval == network.WITHIN


def test_three_repeats_have_an_interval_between_them(folder: Path) -> None:
    plant_probe(folder, repeats=3, between=0.05)
    made = network.table(results.read(folder))
    assert set(made.interval) == {network.BETWEEN} and (made.repeats == 3).all() and (made.calls == 180).all()
    assert (made.seconds_low < made.seconds).all() and (made.seconds < made.seconds_high).all()


@pytest.mark.slow
def test_a_person_reads_both_numbers_with_how_sure_they_are(folder: Path) -> None:
    plant_probe(folder)
    made = listed(results.read(folder))
    assert len(made.rows) == 8
    row = dict(zip(made.header[:8], made.rows[0], strict=False))
    assert (row["network"], row["collective"], row["cores"]) == (
        "torch.distributed (Gloo), 2 workers", "allreduce", "idle",
    )  # fmt: skip
    assert row["latency (µs)"].startswith(("49", "50", "51")) and "[" in row["latency (µs)"]
    assert row["bandwidth (GB/s)"].startswith(("1.9", "2", "2.0")) and row["of the bus (GB/s)"].startswith(("1.9", "2"))
    assert made.rows[0][8:] == ("1 KiB", *made.rows[0][9:10], "16 MiB", *made.rows[0][11:])
    short = network_module.brief(results.read(folder))
    assert short is not None and short.rows[0][0] == "torch.distributed (Gloo), 2 workers, allreduce, idle"


def test_numbers_have_the_units_in_which_people_say_them() -> None:
    assert [binary_size(size) for size in (512, 1008, 1024, 65536, 3 << 20, 1 << 30)] == [
        "512 B", "1008 B", "1 KiB", "64 KiB", "3 MiB", "1 GiB",
    ]  # fmt: skip
    assert [duration(s) for s in (3.124e-5, 4.5e-3, 0.9999, 12.0)] == ["31.2 µs", "4.5 ms", "1 s", "12 s"]
    assert [byte_rate(rate) for rate in (5.0, 1e4, 5.73e7, 1.24e9, 9.999e8)] == [
        "5 B/s", "10 kB/s", "57.3 MB/s", "1.24 GB/s", "1 GB/s",
    ]  # fmt: skip


# --- beside trainings ---


@pytest.mark.slow
def test_a_probe_is_nobodys_competitor(folder: Path, draw_only: Callable[..., None]) -> None:
    """It stands in results.csv, and in no table or figure of trainings."""
    draw_only("throughput", "network")
    before = {path.name for path in analysis.write(folder)}
    tables = {path.name: path.read_text() for path in (folder / "tables").iterdir()}
    plant_probe(folder, repeats=3)
    after = {path.name for path in analysis.write(folder)}
    assert after - before == {"network.md", "network.csv", "network.png", "network.svg"}
    assert tables == {name: (folder / "tables" / name).read_text() for name in tables}
    rows = pd.read_csv(folder / "results.csv")
    probes = rows[rows.framework == "network_probe"]
    assert len(probes) == 3 and probes.samples_per_second.isna().all() and probes.parity.isna().all()
    assert np.allclose(probes.busy_elsewhere_cores, 0.1)
    assert "network_probe" not in (folder / "configurations.csv").read_text()


@pytest.mark.slow
def test_a_study_of_probes_alone_has_its_table_and_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = plant(tmp_path / "planted", [])
    plant_probe(folder)
    names = {path.name for path in analysis.write(folder)}
    assert names == {
        "results.csv", "configurations.csv", "network.md", "network.csv", "network.png", "network.svg",
        "report.html", "report.md", "samples.npz",
    }  # fmt: skip
    analysis.print_tables(folder)
    out = capsys.readouterr().out
    assert "The network (planted)" in out and "no finished trial" not in out


@pytest.mark.slow
def test_a_failed_probe_is_visible_with_its_cause(folder: Path, draw_only: Callable[..., None]) -> None:
    draw_only("network")
    plant_probe(folder, status="failed", reason="rank 1: allreduce of 1024 bytes gave a wrong result")
    names = {path.name for path in analysis.write(folder)}
    assert "network.md" in names and "network.png" not in names
    text = (folder / "tables" / "network.md").read_text()
    assert "failed: rank 1: allreduce of 1024 bytes gave a wrong result" in text


def test_what_is_not_in_the_study_any_more_is_not_shown(folder: Path) -> None:
    kept, gone = plant_probe(folder), plant_probe(folder, launcher="mpirun")
    plant(folder, [], configurations=[kept])
    assert {probe.configuration for probe in network.probes(results.read(folder))} == {kept} != {gone}


def test_a_machine_that_was_not_quiet_is_said(folder: Path) -> None:
    plant_probe(folder, others_cores=1.0)
    said = " ".join(listed(results.read(folder)).notes)
    assert "**The machine was not quiet**: during 1 of 1 probes other processes kept more than 0.2 cores busy" in said


@pytest.mark.parametrize(
    "broken",
    [{"collective": "gossip"}, {"seconds": []}, {"seconds": [0.0]}, {"bytes": "many"}, {"seconds": "long"}],
    ids=str,
)
def test_a_record_that_is_not_whole_is_left_out_by_name(folder: Path, broken: dict[str, Any]) -> None:
    configuration = plant_probe(folder, broken=broken)
    with pytest.warns(SkippedRecord, match=configuration):
        read = results.read(folder)
    assert network.fit(read) == {} and len(read.configurations) == 2


# --- figure ---


@pytest.mark.slow
def test_a_point_for_each_size_and_a_line_that_fits_them(folder: Path) -> None:
    plant_probe(folder, noise=0.01)
    figure = Figures(results.read(folder))["network"]
    panels = figure.axes
    assert len(panels) == 2 * 4 and all(axis.get_xscale() == axis.get_yscale() == "log" for axis in panels)
    assert [axis.get_title(loc="left") for axis in panels[::2]] == [
        "allreduce", "broadcast", "reduce-scatter", "all-gather",
    ]  # fmt: skip
    lines = [line for line in panels[0].lines if len(line.get_xdata()) == 100]
    assert [line.get_linestyle() for line in lines] == ["-", "--"]  # idle, busy
    for line, factor in zip(lines, (1.0, BUSY), strict=True):
        x, y = np.asarray(line.get_xdata(), dtype=float), np.asarray(line.get_ydata(), dtype=float)
        assert np.allclose(y, factor * (ALPHA + BETA * x), rtol=0.03)
    bus = next(line for line in panels[5].lines if len(line.get_xdata()) == 100)  # of a reduce-scatter over two
    assert isclose(float(np.asarray(bus.get_ydata())[-1]), 0.5 * SIZES[-1] / (ALPHA + BETA * SIZES[-1]), rel_tol=0.03)


@pytest.mark.slow
def test_the_figure_says_what_it_shows() -> None:
    text = shown(drawn("networks")["network"])
    for name in ("Horovod (gloo), 2 workers, busy", "mpi4py, 2 workers, idle", "torch.distributed (Gloo), 2 workers"):
        assert name in text
    assert "Hollow, dashed: with busy cores (matrix products)." in text
    assert "1 KiB" in text and "10 ms" in text and "1 GB/s" in text
    assert "64 workers on 8 hosts" in shown(drawn("one network")["network"])
