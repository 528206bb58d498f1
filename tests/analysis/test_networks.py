"""The network of a study: planted probes of known latency and bandwidth, from records to table, fit and figure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isclose
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from drawings import Figures
from planted import Planted, plant
from planted_networks import ALPHA, BETA, BUSY, SIZES, plant_probe

import analysis
from analysis.frames import results
from analysis.frames.results import Results
from analysis.frames.trials import SkippedRecord
from analysis.statistics import network
from analysis.views import network as network_module
from scaling_study.stats.network import COLLECTIVES


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A study with a training, to which probes are added."""
    return plant(tmp_path / "planted", [Planted(), Planted("horovod", workers=2, allreduce="fp32", speed=180.0)])


def noted(read: Results) -> str:
    return " ".join(network_module.listing(read).notes)


def fits(folder: Path) -> Mapping[network.Key, Any]:
    return {key: line for probe in network.probes(results.read(folder)) for key, line in probe.fits.items()}


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
@pytest.mark.parametrize("offset", [0.0, 3 * ALPHA])
def test_a_kink_is_said_in_the_table(folder: Path, offset: float) -> None:
    plant_probe(folder, noise=0.01, offset=offset)
    made = fits(folder)["allreduce", False]
    kinked = made.misfit > network_module.STRAIGHT and made.worst_bytes in (1 << 16, 1 << 18)
    assert kinked == bool(offset) == ("**No straight line**" in noted(results.read(folder)))


@pytest.mark.slow
def test_several_probes_have_to_be_told_apart(folder: Path) -> None:
    plant_probe(folder), plant_probe(folder, launcher="horovodrun", controller="gloo")
    read = results.read(folder)
    assert [(probe.name, probe.launcher, probe.controller, probe.workers) for probe in network.probes(read)] == [
        ("Horovod (gloo), 2 workers", "horovodrun", "gloo", 2),
        ("torch.distributed (Gloo), 2 workers", "torchrun", None, 2),
    ]


def test_no_probe_has_no_fit(folder: Path) -> None:
    read = results.read(folder)
    assert network_module.listing(read) is None and network_module.brief(read) is None
    assert network.probes(read) == [] and network.probes_table(read).empty


def test_three_repeats_have_an_interval_between_them(folder: Path) -> None:
    plant_probe(folder, repeats=3, between=0.05)
    made = network.probes_table(results.read(folder))
    assert set(made.interval) == {network.BETWEEN} and (made.repeats == 3).all() and (made.calls == 180).all()
    assert (made.seconds_low < made.seconds).all() and (made.seconds < made.seconds_high).all()


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


def test_a_failed_probe_is_visible_with_its_cause(folder: Path) -> None:
    plant_probe(folder, status="failed", reason="rank 1: allreduce of 1024 bytes gave a wrong result")
    read = results.read(folder)
    assert "failed: rank 1: allreduce of 1024 bytes gave a wrong result" in noted(read)
    assert "network" not in Figures(read)


def test_what_is_not_in_the_study_any_more_is_not_shown(folder: Path) -> None:
    kept, gone = plant_probe(folder), plant_probe(folder, launcher="mpirun")
    plant(folder, [], configurations=[kept])
    assert {probe.configuration for probe in network.probes(results.read(folder))} == {kept} != {gone}


def test_a_machine_that_was_not_quiet_is_said(folder: Path) -> None:
    plant_probe(folder, others_cores=1.0)
    read = results.read(folder)
    assert "**The machine was not quiet**: during 1 of 1 probes" in noted(read)
    short = network_module.brief(read)
    assert short.rows[0][0] == "torch.distributed (Gloo), 2 workers, allreduce, idle"
    assert [note[:2] for note in short.notes] == ["**"]


@pytest.mark.parametrize("broken", [{"collective": "gossip"}, {"seconds": []}, {"bytes": "many"}], ids=str)
def test_a_record_that_is_not_whole_is_left_out_by_name(folder: Path, broken: dict[str, Any]) -> None:
    configuration = plant_probe(folder, broken=broken)
    with pytest.warns(SkippedRecord, match=configuration):
        read = results.read(folder)
    assert network.probes(read) == [] and len(read.configurations) == 2


# --- figure ---


@pytest.mark.slow
def test_a_point_for_each_size_and_a_line_that_fits_them(folder: Path) -> None:
    plant_probe(folder, noise=0.01)
    figure = Figures(results.read(folder))["network"]
    panels = figure.axes
    assert len(panels) == 2 * 4 and all(axis.get_xscale() == axis.get_yscale() == "log" for axis in panels)
    collectives = ["allreduce", "broadcast", "reduce-scatter", "all-gather"]
    assert [axis.get_title(loc="left") for axis in panels[::2]] == collectives
    lines = [line for line in panels[0].lines if len(line.get_xdata()) == 100]
    assert [line.get_linestyle() for line in lines] == ["-", "--"]  # idle, busy
    for line, factor in zip(lines, (1.0, BUSY), strict=True):
        x, y = np.asarray(line.get_xdata(), dtype=float), np.asarray(line.get_ydata(), dtype=float)
        assert np.allclose(y, factor * (ALPHA + BETA * x), rtol=0.03)
    bus = next(line for line in panels[5].lines if len(line.get_xdata()) == 100)  # Gloo's reduce-scatter over two
    assert isclose(float(np.asarray(bus.get_ydata())[-1]), SIZES[-1] / (ALPHA + BETA * SIZES[-1]), rel_tol=0.03)
