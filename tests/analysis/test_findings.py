"""Every flaw of the published studies that a record can show, planted in records and seen; and its sound sibling, which
is not. docs/internals/flaws.md has the table of all of them."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from planted import Planted, default_study, plant, plant_gates
from planted_flaws import CUDA, GPUS, SINGLE, TRAINED, Flawed, flaws, found, plant_flawed
from planted_pipelines import Pipeline, plant_pipelines
from rich.console import Console

from analysis import findings, terminal
from analysis.findings import DOUBT, NOTE, WRONG, Evidence, Finding
from analysis.frames import results
from analysis.frames.results import Results
from analysis.published import ratios
from analysis.report import trust
from analysis.report.page import Material
from analysis.views import catalog, pipelines, work
from analysis.views.view import View
from scaling_study.records.schema import GpuUse, Lateness, Phases
from scaling_study.settings import CHECKOUT
from tests.net.examples import example

ONE = Planted()
TWO = Planted("horovod", workers=2, allreduce="fp32", speed=180.0)
DDP = Planted("torch_ddp", workers=2, allreduce="fp32", speed=180.0)
FSDP = Planted("torch_fsdp2", workers=2, allreduce="fp32", speed=190.0)
OBSERVED = Planted("command", workers=2, allreduce="fp32", keys=(("command", "torchrun t.py"),))
LONG = replace(TWO, repeats=5, steps=10)
FP16 = (("precision", "bf16"),)
ONE_GPU, TWO_GPUS, DDP_GPUS = (replace(one, keys=CUDA) for one in (ONE, TWO, DDP))
SHARED_GPU = replace(DDP, keys=(*CUDA, ("oversubscribe", True)))  # NCCL refuses two ranks on a GPU
CLIFF = [
    Planted(batch_per_worker=batch, speed=speed) for batch, speed in ((256, 4657.0), (512, 4700.0), (1024, 1349.0))
]
LM = Planted("single", "transformer_lm", 16, tokens=35)
EPOCHS = [replace(one, keys=(("epochs", 1), ("warmup_epochs", 1))) for one in (ONE, DDP)]


def first_step(factor: float) -> Any:
    return lambda rank: {"step_seconds": [factor * rank.step_seconds[0], *rank.step_seconds[1:]]}


def ramped(change: float) -> Any:
    return lambda rank: {"step_seconds": [rank.step_seconds[0] * change ** (i / 9) for i in range(10)]}


def late(seconds: float) -> Any:
    """Rank 1, and the others that wait for it; steps are of 360 ms."""
    return lambda rank: {
        "late": Lateness(*(each * (1 if rank.rank else -1) for each in (seconds, 0.9 * seconds, seconds)))
    }


def waiting(share: float, mean: float = 0.32) -> dict[str, Any]:
    rest = (1 - share) * mean / 4
    return {"phases": Phases(4, mean, share * mean, rest, rest, None, rest, rest)}


def backend(**about: Any) -> dict[str, Any]:
    return {"backend": about}


def nccl_of_horovod(kernels: int) -> dict[str, Any]:
    return {"backend": {"controller": "mpi", "operations": "NCCL"}, "nccl_kernels": kernels, "transport": "TCP"}


def epoch(running: float) -> Flawed:
    """60 steps of 0.32 s, and what else is in the epoch's own time: a launch, a checkpoint."""
    last = {"warmup": False, "steps": 60, "samples": 1920, "data_seconds": 0.5, "training_seconds": 18.0}
    return Flawed(replace(ONE, keys=(("epochs", 1),)), {"epochs": [{**last, "running_seconds": running}]})


def rates(*pairs: tuple[Planted, float], **more: Any) -> list[Flawed]:
    return [Flawed(one, {"learning_rate": rate, **more}) for one, rate in pairs]


def to_a_result(*workers: int) -> list[Flawed]:
    return rates(*((replace(DDP, workers=n, speed=100.0 * n), 0.1) for n in workers), training=TRAINED)


def replace_batch(one: Flawed, batch: int) -> Flawed:
    return replace(one, of=replace(one.planted, batch_per_worker=batch))


def carried(controller: str, way: str) -> list[Planted | Flawed]:
    horovod = {"backend": {"controller": controller, "operations": "host"}, "transport": way}
    return [ONE, Flawed(TWO, horovod), Flawed(DDP, {"backend": {"backend": "gloo"}, "transport": "TCP"})]


Study = Sequence[Planted | Flawed]


@dataclass(frozen=True)
class Case:
    """A planted flaw: its finding's severity and the fact that it names, and a study that does not have it."""

    flaw: str
    severity: str
    planted: Study
    says: str = ""
    sound: Study = (ONE, TWO)
    about: Mapping[str, Any] = field(default_factory=dict)


CASES = {
    "no warm-up": Case("F1", WRONG, [ONE, Flawed(TWO, {"warmup_seconds": []})], "resnet18, horovod, 2 workers, fp32"),
    "a slow first step": Case(
        "F1", DOUBT, [ONE, Flawed(TWO, first_step(9.0))], "up to 9", [ONE, Flawed(TWO, first_step(1.2))]
    ),
    "steps become faster": Case("F1", DOUBT, [ONE, Flawed(LONG, ramped(0.9))], "", [ONE, Flawed(LONG, ramped(0.995))]),
    "steps become slower": Case("slowing", DOUBT, [ONE, Flawed(LONG, ramped(1.1))], "", [ONE, Flawed(LONG, ramped(1))]),
    "one rank that others wait for": Case(
        "straggler", NOTE, [ONE, Flawed(TWO, late(0.02))], "Rank 1 on planted", [ONE, Flawed(TWO, late(0.002))]
    ),
    "one repeat": Case("F2", DOUBT, [ONE, replace(TWO, repeats=1)], "1 of 2 configurations"),
    "two repeats": Case("F2", DOUBT, [ONE, replace(TWO, repeats=2)], "1 of 2 configurations"),
    "NCCL that is not used": Case(
        "F3",
        WRONG,
        [ONE_GPU, Flawed(TWO_GPUS, nccl_of_horovod(0))],
        "",
        [ONE_GPU, Flawed(TWO_GPUS, nccl_of_horovod(5))],
        {"machine": GPUS},
    ),
    "Horovod without NCCL": Case(
        "F3",
        WRONG,
        [ONE_GPU, Flawed(TWO_GPUS, backend(controller="mpi", operations="host"))],
        "instead of NCCL",
        [ONE_GPU, Flawed(TWO_GPUS, backend(controller="mpi", operations="NCCL"))],
        {"machine": GPUS},
    ),
    "gradients by unlike means": Case(
        "carriers",
        DOUBT,
        carried("mpi", "shared memory"),
        "MPI over shared memory (horovod); Gloo over TCP (torch_ddp)",
        carried("gloo", "TCP"),
    ),
    "only some hide communication": Case(
        "overlap",
        NOTE,
        [ONE, Flawed(TWO, {"overlap": 0.7}), Flawed(FSDP, {"overlap": 0.05})],
        "in horovod (up to 70 %",
        [ONE, Flawed(TWO, {"overlap": 0.7}), Flawed(FSDP, {"overlap": None})],
    ),
    "a cliff": Case("F4", DOUBT, CLIFF, "29 %", [*CLIFF[:2], replace(CLIFF[2], speed=4500.0)]),
    "a cliff of single runs": Case("F4", DOUBT, [replace(one, repeats=1) for one in CLIFF], "29 %", CLIFF[:2]),
    "a cliff of the loader": Case(
        "F4", NOTE, [*CLIFF[:2], Flawed(CLIFF[2], waiting(0.78, 1024 / 1349))], "is in data", CLIFF[:2]
    ),
    "one count of two models": Case(
        "F5",
        WRONG,
        [ONE, Flawed(replace(ONE, model="resnet50"), {"parameters": 11_181_642})],
        "resnet18 and resnet50 have 11,181,642",
        [ONE, replace(ONE, model="resnet50")],
    ),
    "two counts of one head": Case(
        "F5",
        WRONG,
        [ONE, Flawed(TWO, {"parameters": 23_528_522})],
        "11,181,642",
        [ONE, Flawed(replace(TWO, keys=(("classes", 1000),)), {"parameters": 23_528_522})],
    ),
    "two counts of one model": Case("F5", WRONG, [ONE, Flawed(TWO, {"parameters": 23_528_522})], "11,181,642"),
    "a loader": Case("F6", DOUBT, [ONE, Flawed(TWO, waiting(0.6))], "60 %, in resnet18, horovod"),
    "two meanings of sixteen bits": Case(  # the published pair, of which both have an fp32 beside it
        "F7",
        DOUBT,
        [ONE, TWO, replace(TWO, allreduce="fp16"), FSDP, replace(FSDP, speed=250.0, keys=FP16)],
        "computing in them in torch_fsdp2, and fp32 computing with 16-bit gradients on the wire in horovod",
        [ONE, TWO, *(replace(one, allreduce="fp16") for one in (TWO, FSDP)), FSDP, replace(FSDP, keys=FP16)],
    ),
    "unlike precision on the wire": Case(
        "F7",
        WRONG,
        [ONE, TWO, replace(FSDP, allreduce="fp16")],
        "horovod in fp32; torch_fsdp2 in fp16",
        [ONE, TWO, FSDP, replace(FSDP, allreduce="fp16")],
    ),
    "an epoch with more in it": Case("F8", DOUBT, [epoch(40.0)], "40.0 s, and its 60 steps 19.3 s", [epoch(19.5)]),
    "samples that do not add up": Case(
        "F9",
        WRONG,
        [ONE, Flawed(TWO, lambda rank: {"samples_seen": rank.samples_seen // 2})],
        "1,920 in 60 steps",
        [Flawed(OBSERVED, lambda rank: {"samples_seen": rank.samples_seen - 9})],  # a batch that ends an epoch
    ),
    "epochs of unlike batches": Case(
        "F9",
        WRONG,
        [Flawed(ONE, {"steps_per_epoch": 2929}), Flawed(TWO, {"steps_per_epoch": 50})],
        "3,200",
        [Flawed(ONE, {"steps_per_epoch": 1562}), Flawed(TWO, {"steps_per_epoch": 781})],
    ),
    "unlike data": Case(
        "F9", WRONG, [ONE, Flawed(TWO, {"data_source": "synthetic (none is there)"})], "cifar10 in resnet18, single"
    ),
    "a variant beside its original": Case(
        "F10", DOUBT, [LM, replace(LM, model="transformer_lm_unmasked")], "no causal mask", [LM]
    ),
    "another batch at one rate in epochs": Case(
        "F13", DOUBT, rates((EPOCHS[0], 0.001), (EPOCHS[1], 0.001)), "32 and 64 samples", EPOCHS
    ),
    "gloo on GPUs": Case(
        "F14",
        WRONG,
        [ONE_GPU, Flawed(DDP_GPUS, backend(backend="gloo"))],
        "resnet18, torch_ddp",
        [ONE_GPU, Flawed(DDP_GPUS, backend(backend="nccl"))],
        {"machine": GPUS},
    ),
    "unlike cores": Case("F17", WRONG, [Flawed(ONE, {"cores": [0, 1, 2, 3]}), TWO], "4 in resnet18, single"),
    "unlike threads": Case(
        "F17",
        WRONG,
        [Flawed(ONE, {"threads": 16}), TWO],
        "16 in resnet18, single",
        [Flawed(ONE, {"threads": 16}), Flawed(replace(TWO, keys=(("daemon_cores", 1),)), {"threads": 15})],
    ),
    "the batch grows and the rate does not": Case(
        "F19", NOTE, rates((ONE, 1e-4), (TWO, 1e-4)), "", rates((ONE, 1e-4), (TWO, 2e-4))
    ),
    "the batch of a result grows": Case("F19", WRONG, to_a_result(2, 3, 4), "64 and 96 and 128", to_a_result(2)),
    "one framework in sixteen bits": Case(
        "F21",
        WRONG,
        [ONE, DDP, replace(FSDP, keys=FP16)],
        "torch_ddp in fp32; torch_fsdp2 in bf16",
        [ONE, DDP, FSDP, replace(FSDP, keys=FP16)],
    ),
    "unlike optimiser steps": Case(
        "F23",
        WRONG,
        rates(
            (replace(DDP, batch_per_worker=4096), 0.001), (replace(FSDP, batch_per_worker=640), 0.001), training=TRAINED
        ),
        "torch_ddp 8192; torch_fsdp2 1280",
        rates(*((replace(one, batch_per_worker=4096), 0.001) for one in (DDP, FSDP)), training=TRAINED),
        {"baseline": None},
    ),
    "one unit": Case(
        "F24",
        WRONG,
        [ONE, Flawed(FSDP, backend(backend="gloo", units=1))],
        "resnet18, torch_fsdp2",
        [ONE, Flawed(FSDP, backend(backend="gloo", units=6))],
    ),
    "a doubled batch at one rate in a result": Case("F26", WRONG, to_a_result(2, 4), "64 and 128", to_a_result(2)),
    "doubled and larger batches at one rate": Case(
        "F19",
        WRONG,
        [*to_a_result(2, 4), *(replace_batch(one, 16) for one in to_a_result(2, 8))],
        "32 and 128, 64 and 128",
        to_a_result(2),
    ),
    "a timed row beside a result at one rate": Case(
        "F19",
        NOTE,
        [*to_a_result(2), *rates((replace(ONE, batch_per_worker=32), 0.1), (replace(TWO, batch_per_worker=32), 0.1))],
        "32 and 64",
        to_a_result(2),
    ),
    "a baseline that waits for data": Case("F28", DOUBT, [Flawed(ONE, waiting(0.92 / 1.58)), TWO], "58 %"),
    "superlinear": Case("superlinear", WRONG, [ONE, replace(TWO, speed=1200.0)], "2 workers", [ONE, TWO]),
    "superlinear in one repeat": Case(
        "superlinear",
        DOUBT,
        [ONE, replace(TWO, speed=1200.0, repeats=1)],
        "",
        [ONE, replace(TWO, speed=230.0, repeats=1)],
    ),
    "a machine that was not quiet": Case(
        "busy", DOUBT, [ONE, Flawed(TWO, {"own_cpu_seconds": 0.0, "host_cpu_seconds": 100.0})], "3 of 3 runs"
    ),
    "a GPU that others used": Case(
        "gpus in use",
        DOUBT,
        [ONE_GPU, Flawed(TWO_GPUS, {}, {"gpus_before": [GpuUse("GPU-0", "H100", 3 << 30, 80 << 30, 2, 97.0)]})],
        "Before 3 runs began, others used a GPU of theirs: 3.0 GiB of H100, by 2 processes, 97 % busy",
        [ONE_GPU, Flawed(TWO_GPUS, {}, {"gpus_before": [GpuUse("GPU-0", "H100", 4 << 20, 80 << 30, 0, 97.0)]})],
    ),
    "rounds over several GPUs": Case(
        "untested rounds",
        DOUBT,
        [replace(one, keys=(*CUDA, ("warm", True))) for one in (ONE, TWO)],
        "untested",
        [ONE_GPU, TWO_GPUS],
    ),
    "a CPU quota": Case(
        "throttled",
        DOUBT,
        [ONE, Flawed(TWO, {"throttled_seconds": 5.0})],
        "In 3 runs",
        [Flawed(ONE, {"throttled_seconds": 0.0}), Flawed(TWO, {"throttled_seconds": 0.001})],
    ),
    "steps that the loss scaler left out": Case(
        "skipped steps",
        DOUBT,
        [ONE, Flawed(TWO, {"warmup_skipped_steps": 3, "skipped_steps": 2})],
        "up to 2 ",
        [ONE, Flawed(TWO, {"warmup_skipped_steps": 3, "skipped_steps": 0})],  # those of the warm-up are what it is for
    ),
    "ranks of a command that read the same data": Case(
        "unlike ranks",
        DOUBT,
        [Flawed(OBSERVED, {"notes": ["doubt: all ranks train on the same data: is a DistributedSampler missing?"]})],
        "DistributedSampler",
        [Flawed(OBSERVED, {"notes": ["peak memory is of the process, resident, while it stepped"]})],
    ),
    "a command that scales its learning rate": Case(
        "F19",
        NOTE,
        [Flawed(replace(OBSERVED, workers=n), {"first_learning_rates": [n / 10, 0.5]}) for n in (1, 2)],
        "0.1 with 1 worker, 0.2 with 2 workers",
        [Flawed(replace(OBSERVED, workers=n), {"first_learning_rates": [0.1, n]}) for n in (1, 2)],
    ),
    "drawn scenes": Case(
        "synthetic", NOTE, [Flawed(one, {"data_source": "surgical_scenes (synthetic scenes)"}) for one in (ONE, TWO)]
    ),
    "a loss that is not finite": Case(
        "loss", DOUBT, [ONE, Flawed(TWO, {"notes": ["the loss is not finite"]})], "resnet18, horovod"
    ),
    "several versions": Case(
        "versions",
        DOUBT,
        [Flawed(one, {"versions": {"torch": now}}) for one, now in ((ONE, "2.4.1"), (TWO, "2.5.0"))],
        "torch 2.4.1 (3 trials), 2.5.0 (3 trials)",
    ),
    "a script that changed between launches": Case(
        "script",
        DOUBT,
        [Flawed(OBSERVED, lambda rank: {"backend": {"code": str(rank.step_seconds[0])}})],
        "changed between launches",
        [Flawed(OBSERVED, {"backend": {"code": "a1"}})],
    ),
    "an edited model": Case(
        "model code",
        DOUBT,
        [Flawed(ONE, {}, {"model_code": "aaa"}), Flawed(TWO, {}, {"model_code": "bbb"})],
        "resnet18 aaa (3 trials), bbb (3 trials)",
        [Flawed(ONE, {}, {"model_code": "aaa"}), Flawed(replace(TWO, model="resnet8"), {}, {"model_code": "bbb"})],
    ),
    "several commits": Case("commits", NOTE, [Flawed(ONE, {}, {"commit": "aaa"}), Flawed(TWO, {}, {"commit": "bbb"})]),
    "an unknown commit": Case(
        "commit-unknown", NOTE, [ONE, Flawed(TWO, {}, {"commit": "unknown: git gave none"})], "git gave none (3 trials)"
    ),
    # Both were run three times, one of them two hours later: after `--where`, an addition or extra repeats.
    "not measured in turns": Case(
        "apart", DOUBT, [ONE, Flawed(TWO, {}, {"started_at": "2026-01-31T12:03:00+00:00"})], "up to 120 minutes"
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_planted_flaw_is_found_and_its_sound_sibling_is_not(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    seen = found(plant_flawed(tmp_path / "flawed", case.planted, **case.about), case.flaw)
    assert seen.severity == case.severity and case.says in seen.text
    assert case.flaw not in flaws(plant_flawed(tmp_path / "sound", case.sound, **case.about))


def test_a_finding_names_only_the_configurations_that_it_concerns(tmp_path: Path) -> None:
    for name in ("no warm-up", "steps become slower", "a machine that was not quiet"):
        case = CASES[name]
        seen = found(plant_flawed(tmp_path / name, case.planted), case.flaw)
        assert len(seen.configurations) == 1 and seen.configurations[0].startswith("horovod")


@pytest.mark.parametrize(
    "planted",
    [
        pytest.param([ONE, Flawed(TWO, backend(operations="host"))], id="gradients of CPUs are on the host"),
        pytest.param([*CLIFF[:2], replace(CLIFF[2], speed=5000.0)], id="no cliff"),
        pytest.param([ONE_GPU, Flawed(SHARED_GPU, backend(backend="gloo"))], id="two ranks on a GPU"),
        pytest.param(
            [Flawed(replace(one, keys=(("train_epochs", 3),)), {"steps_per_epoch": n, "training": TRAINED})
             for one, n in ((ONE, 1400), (TWO, 700))], id="part of the samples is held out"),
    ],
)  # fmt: skip
def test_what_only_looks_like_a_flaw_is_none(tmp_path: Path, planted: Study) -> None:
    seen = flaws(plant_flawed(tmp_path, planted, machine=GPUS))
    assert not seen & {"F3", "F4", "F9", "F14"}


def test_a_sound_study_has_no_findings(tmp_path: Path) -> None:
    planted, about = default_study()
    quiet = [replace(one, noise=0.005) for one in planted]
    plant(tmp_path, quiet, **about)
    plant_gates(tmp_path, quiet, study=about["study"])
    assert catalog.all_findings(results.read(tmp_path)) == []
    planted, about = default_study(synthetic=True)
    assert found(results.read(plant(tmp_path / "synthetic", planted, **about)), "synthetic").severity == NOTE


@pytest.mark.parametrize("planted", [[], [replace(ONE, status="oom", speed=None)]], ids=["empty", "all failed"])
def test_where_nothing_was_measured_nothing_is_found(tmp_path: Path, planted: list[Planted]) -> None:
    assert catalog.all_findings(results.read(plant(tmp_path, planted))) == []


def test_what_was_planned_and_not_run_is_a_doubt(tmp_path: Path) -> None:
    known = [one.trial().configuration for one in (ONE, TWO)]
    plant(tmp_path, [ONE, TWO], baseline={"framework": "single"}, configurations=[*known, "a", "b", "c", "d"])
    (one,) = [one for one in catalog.all_findings(results.read(tmp_path)) if one.flaw == "unmeasured"]
    assert one.severity == DOUBT and "4 of the 6" in one.text and "a; b; c and 1 more" in one.text


def test_one_repeat_is_no_pattern(tmp_path: Path) -> None:
    done = plant_flawed(tmp_path, [ONE, TWO])
    done.trials.loc[done.trials.index[-1], "step_trend"] = -0.5
    facts = done.details.facts
    facts.loc[facts.index[0], "first_step"] = 9.0
    assert not flaws(done) & {"F1", "slowing"}


def test_f5_known_variants_may_have_as_many() -> None:
    assert work._related("transformer_lm", "transformer_lm_unmasked")
    assert work._related("resnet8_groupnorm", "resnet8") and not work._related("resnet18", "resnet50")
    assert not work._related("one of mine", "another of mine")


@pytest.mark.parametrize(
    ("fault", "severity"), [("loss of step 3: off by 0.2", WRONG), (None, DOUBT)], ids=["failed", "not checked"]
)
def test_f10_what_trains_something_else(tmp_path: Path, fault: str | None, severity: str) -> None:
    plant(tmp_path, [ONE, TWO], **SINGLE)
    if fault:
        plant_gates(tmp_path, [ONE, TWO], {"horovod": fault})
    seen = found(results.read(tmp_path), "parity")
    assert seen.severity == severity and (fault or "") in seen.text


def test_f15_weights_that_no_stage_has(tmp_path: Path) -> None:
    """Two stages of 100 and 200 parameters, of a model that has 1,000."""
    done = results.read(plant_pipelines(tmp_path, [Pipeline("gpipe", p=2, m=4)]))
    seen = found(done, "F15")
    assert seen.severity == WRONG and "700 of 1,000" in seen.text
    assert "F15" not in flaws(replace(done, configurations=done.configurations.assign(parameters=300)))


def test_f16_a_cut_that_caps_the_speed_up(tmp_path: Path) -> None:
    published = Pipeline("gpipe", p=4, m=7, shares=(0.24, 0.21, 0.485, 0.065), batch=28)
    seen = found(results.read(plant_pipelines(tmp_path, [published])), "F16")
    for figure in ("24 / 21 / 48 / 6.5 %", "2.06 x", "1.79 x"):
        assert figure in seen.text
    even = replace(published, shares=())
    assert "F16" not in flaws(results.read(plant_pipelines(tmp_path / "even", [even])))


def test_f16_each_configuration_has_its_own_caps_and_one_without_room_is_not_blamed(tmp_path: Path) -> None:
    near, far = Pipeline("gpipe", m=4, shares=(0.4, 0.6)), Pipeline("gpipe", m=8, shares=(0.35, 0.65))
    crowded = Pipeline("gpipe", m=4, replicas=2, shares=(0.2, 0.8), keys=(("oversubscribe", True),))
    done = results.read(plant_pipelines(tmp_path, [near, far, crowded]))
    seen = found(done, "F16")
    for name, shares, most, own in (("4 micro", "40 / 60", "1.67", "1.43"), ("8 micro", "35 / 65", "1.54", "1.44")):
        said = f"stages take {shares} % of the time, so no schedule on 2 workers is faster than {most} x one process"
        assert re.search(
            rf"{name}-batches, batch \d+: {re.escape(said)}, and this one no faster than {own} x", seen.text
        )
    assert len(seen.configurations) == 2 and "80" not in seen.text
    table = pipelines.listing(done)
    assert table and "does 60 to 65 % of the work: the speed-up of any schedule is at most 1.54 to 1.67" in " ".join(
        table.notes
    )
    alone = results.read(plant_pipelines(tmp_path / "alone", [crowded]))
    assert "20 / 80 %" in found(alone, "F16").text, "where there is nothing else, it is said of that"


def test_f21_no_speed_up_is_taken_over_another_precision(tmp_path: Path) -> None:
    """Impossible by construction: the baseline of a bf16 row is a bf16 row, or there is none."""
    done = plant_flawed(tmp_path, [ONE, replace(DDP, keys=FP16)])
    row = done.configurations.set_index("framework").loc["torch_ddp"]
    assert row.speedup != row.speedup and "no baseline trial" in row.speedup_reason


# --- runs that were trained to a result ---

BACKBONE = {"name": "backbone", "parameters": 11_176_512}
HEAD = {"name": "instrument", "parameters": 295_494, "learning_rate": 1e-3}
UNMOVED = {"instrument": 0.2, "backbone": 0.0}
FROZEN = {**BACKBONE, "learning_rate": 0.0, "asked": True}
FLAWS: dict[str, tuple[str, dict[str, Any], str]] = {  # what is said, and the fact that the finding names
    "at no rate": ("F11", {"groups": [{**BACKBONE, "learning_rate": 0.0}]}, "backbone (11,176,512 parameters)"),
    "did not move": (
        "F11",
        {"groups": [HEAD, {**BACKBONE, "learning_rate": 1e-4}], "moved": UNMOVED},
        "did not move: backbone",
    ),
    "frozen, and moved": (
        "F11",
        {"groups": [HEAD, FROZEN], "moved": {**UNMOVED, "backbone": 1e-3}},
        "frozen, and moved: backbone",
    ),
    "loss of a batch": ("F12", {"logged_loss": "last batch"}, "last batch"),
    "hidden maps": ("F12", {"shown_maps": {"channels": "hidden", "class": "least likely"}}, "hidden channels"),
    "in both": ("F18", {"in_both": {"validation/test": 10_000}}, "10,000 samples of the test set"),
    "selected on test": ("F18", {"selected_on": "test"}, "test set selects"),
    "another layout": ("F20", {"resumed_layout": "77aa"}, "other names or shapes"),
    "joined": (
        "F22",
        {"splits": {"train": {"train": 41_667, "test": 8_333}, "test": {"train": 8_333, "test": 1_667}}},
        "joined and split anew",
    ),
    "trained on test": ("F22", {"in_both": {"test/train": 12}}, "12 samples of the test set"),
    # As a published loader of operations has it, whose validation videos are the last of its training videos.
    "trained on validation": ("F22", {"in_both": {"train/validation": 4_500}}, "4,500 of the 5,000 samples"),
    "one order": ("F25", {"orders": ["a1", "a1", "a1"]}, "3 epochs"),
    "part of the test set": (
        "F27",
        {"evaluated": {"split": "test", "samples": 5_000, "accuracy": 0.84}},
        "5,000 of the 10,000",
    ),
}
SOUND: dict[str, dict[str, Any]] = {
    "as it should be": {},
    "frozen as asked": {"groups": [HEAD, FROZEN], "moved": UNMOVED},
    "passages that recur in a published text": {"in_both": {"train/validation": 2}},
    "running text in one order and a test set by another name": {
        "splits": {"train": {"train": 7_600}, "validation": {"train": 850}, "test": {"development": 1_043}},
        "evaluated": {"split": "test", "samples": 1_043, "matthews": 0.4},
        "orders": ["a1", "a1", "a1"],
        "one_order": "running text is read as it runs",
    },
}


def trained(folder: Path, **changes: Any) -> set[Finding]:
    said = {**TRAINED, **changes}
    done = plant_flawed(folder, [Flawed(ONE, {"training": said}), Flawed(TWO, {"training": said})])
    return set(catalog.all_findings(done))


@pytest.mark.parametrize("name", FLAWS)
def test_a_flaw_of_a_training_is_found_in_planted_records(name: str, tmp_path: Path) -> None:
    flaw, changes, fact = FLAWS[name]
    (seen,) = trained(tmp_path, **changes)
    assert seen.flaw == flaw and fact in seen.text and len(seen.configurations) == 2


@pytest.mark.parametrize("name", SOUND)
def test_a_sound_training_has_no_findings(name: str, tmp_path: Path) -> None:
    assert trained(tmp_path, **SOUND[name]) == set()


def test_f27_ranks_that_claim_unlike_figures(tmp_path: Path) -> None:
    def own(rank: Any) -> Mapping[str, Any]:
        return {"training": {**TRAINED, "evaluated": {**TRAINED["evaluated"], "accuracy": 0.8 + 0.1 * rank.rank}}}

    assert (
        found(plant_flawed(tmp_path, [Flawed(ONE, {"training": TRAINED}), Flawed(TWO, own)]), "F27").severity == WRONG
    )


def test_a_training_that_diverged_is_read_though_it_moved_by_no_number(tmp_path: Path) -> None:
    said = {**TRAINED, "groups": [HEAD], "moved": {"instrument": None}}
    done = plant_flawed(tmp_path, [Flawed(ONE, {"training": said})])
    assert set(done.configurations.framework) == {"single"} and "F11" not in flaws(done)


@pytest.mark.parametrize(
    "said",
    [{"groups": 3}, {"groups": [{}]}, {"splits": {"train": 3}}, {"in_both": {"a/b": "x"}}, {"orders": {"a": 1}},
     {"evaluated": []}, {"evaluated": {"split": "test", "accuracy": "x"}}, {"validated": {"split": "s", "loss": "x"}},
     {"groups": [{"name": 3, "parameters": 1, "learning_rate": 1}]}],
    ids=str,
)  # fmt: skip
def test_a_record_whose_training_has_no_right_shape_is_skipped_by_name(said: dict[str, Any], tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=rf"is not whole: ranks\.0\.training.*{next(iter(said))}"):
        done = plant_flawed(tmp_path, [replace(ONE, repeats=1), Flawed(replace(TWO, repeats=1), {"training": said})])
    assert set(done.configurations.framework) == {"single"}


# --- what a finding is ---


def test_the_worst_comes_first_and_each_once(tmp_path: Path) -> None:
    done = plant_flawed(tmp_path, [Flawed(replace(ONE, repeats=1), {"warmup_seconds": []}), Flawed(TWO, waiting(0.5))])
    seen = catalog.all_findings(done)
    assert [one.severity for one in seen] == sorted((one.severity for one in seen), key=findings.SEVERITIES.index)
    assert len(seen) == len(set(seen)) >= 3
    known = set(done.configurations.configuration)
    assert all(set(one.configurations) <= known and one.title and one.text.endswith(".") for one in seen)


def test_a_check_that_fails_costs_nobody_the_others_and_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(evidence: Evidence) -> Iterator[Finding]:
        raise KeyError("workers")
        yield

    monkeypatch.setattr(catalog, "VIEWS", (View("Is it?", detectors=(broken,)), *catalog.VIEWS))
    done = plant_flawed(tmp_path, [replace(ONE, repeats=1)])
    assert flaws(done) == {"unchecked", "F2"}
    assert "could not be made: KeyError: 'workers'" in found(done, "unchecked").text


def test_a_severity_is_one_of_three() -> None:
    with pytest.raises(ValueError, match="severity 'loud' is none of wrong, doubt, note"):
        Finding("F1", "", "", "loud")


def test_records_of_before_have_no_facts_and_no_false_alarm(tmp_path: Path) -> None:
    done = plant_flawed(tmp_path, [ONE, TWO])
    empty = replace(done, details=replace(done.details, facts=done.details.facts.iloc[:0]))
    assert catalog.all_findings(empty) == [] and Evidence(empty).fact(Evidence(empty).rows[0], "cores") == []


# --- in the terminal ---


def printed(done: Results) -> str:
    console = Console(width=200, record=True, file=io.StringIO())
    terminal.show(done, console)
    return console.export_text()


def test_the_terminal_prints_every_finding_the_worst_first_and_the_machine(tmp_path: Path) -> None:
    text = printed(plant_flawed(tmp_path, [Flawed(replace(ONE, repeats=1), {"warmup_seconds": []}), TWO]))
    warned = text[text.index("\nWarnings") :]
    assert warned.index("error: No warm-up (F1). Timed from") < warned.index("warning: Too few repeats (F2)")
    assert "Noise floor: not known, too few repeats." in warned and "Drift: not known, too few repeats" in warned


# --- which flaws were looked for ---


def test_a_study_of_two_frameworks_states_what_it_cannot_show(tmp_path: Path) -> None:
    """One batch size, no GPU, no pipeline, no epochs, and nothing trained to a result."""
    evidence = Evidence(plant_flawed(tmp_path, [ONE, TWO]))
    missed = "F3 F4 F8 F11 F12 F13 F14 F15 F16 F18 F20 F22 F23 F24 F25 F26 F27"
    assert set(catalog.not_looked_for(evidence)) == {*missed.split()}
    assert "11 of the 28 flaws" in catalog.looked_for_sentence(evidence)
    shown = str(trust.section(Material(evidence.results, "r", {})))
    assert all(f"{flaw} {ratios.FLAWS[flaw]}" in shown for flaw in missed.split())
    assert list(ratios.FLAWS) == list(catalog.PUBLISHED)


def test_a_run_that_is_trained_to_a_result_is_looked_at_for_the_flaws_of_training(tmp_path: Path) -> None:
    done = plant_flawed(tmp_path, [Flawed(ONE, {"training": TRAINED}), Flawed(TWO, {"training": TRAINED})])
    assert not set(catalog.OF_A_TRAINING) & set(catalog.not_looked_for(Evidence(done)))
    assert "no run was trained to a result" not in catalog.looked_for_sentence(Evidence(done))


def test_the_page_quotes_what_is_stated_of_the_example() -> None:
    said = catalog.looked_for_sentence(Evidence(results.read(example("cifar10-scaling"))))
    assert said.replace(" (docs/internals/flaws.md)", "") in " ".join(PAGE.replace("\n> ", " ").split())


# --- the table of the page ---

PAGE = (CHECKOUT / "docs" / "internals" / "flaws.md").read_text(encoding="utf-8")
TABLE = re.findall(r"^\| (F\d+) \|.*\|([^|]*)\|$", PAGE, re.MULTILINE)


def test_every_flaw_has_its_row_in_the_page_with_the_tests_that_show_it() -> None:
    assert [f"F{number}" for number in range(1, 29)] == [flaw for flaw, _ in TABLE]
    named = [re.findall(r"`(test_\w+)`", shown) for _, shown in TABLE]  # that they exist: test_documents_links.py
    assert all(named) and len({name for names in named for name in names}) >= 28
