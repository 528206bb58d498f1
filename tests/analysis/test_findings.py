"""Every flaw of the published studies that a record can show, planted in records and seen; and its sound sibling, which
is not. docs/flaws.md has the table of all of them."""

from __future__ import annotations

import ast
import io
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
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
from analysis.frames.training import Training
from analysis.views import catalog, communication, throughput, warnings, work
from analysis.views.view import Detector, View
from scaling_study.records.store import Phases
from scaling_study.settings import CHECKOUT
from tests.net.examples import example

ONE = Planted()
TWO = Planted("horovod", workers=2, allreduce="fp32", speed=180.0)
DDP = Planted("torch_ddp", workers=2, allreduce="fp32", speed=180.0)


def test_a_sound_study_has_no_findings(tmp_path: Path) -> None:
    planted, about = default_study()
    quiet = [replace(one, noise=0.005) for one in planted]
    plant(tmp_path, quiet, **about)
    plant_gates(tmp_path, quiet, study=about["study"])
    assert warnings.all_findings(results.read(tmp_path)) == []


@pytest.mark.parametrize("planted", [[], [replace(ONE, status="oom", speed=None)]], ids=["empty", "all failed"])
def test_where_nothing_was_measured_nothing_is_found(tmp_path: Path, planted: list[Planted]) -> None:
    assert warnings.all_findings(results.read(plant(tmp_path, planted))) == []


def test_what_was_planned_and_not_run_is_a_doubt(tmp_path: Path) -> None:
    known = [one.trial().configuration for one in (ONE, TWO)]
    plant(tmp_path, [ONE, TWO], baseline={"framework": "single"}, configurations=[*known, "a", "b", "c", "d"])
    (one,) = [one for one in warnings.all_findings(results.read(tmp_path)) if one.flaw == "unmeasured"]
    assert one.severity == DOUBT
    assert one.text.startswith("4 of the 6 configurations of the study have no record that can be read: a; b; c and 1 ")


# --- the published flaws, one by one ---


def test_f1_no_warm_up(tmp_path: Path) -> None:
    done = plant_flawed(tmp_path, [ONE, Flawed(TWO, {"warmup_seconds": []})])
    seen = found(done, "F1")
    assert (seen.title, seen.severity) == ("No warm-up", WRONG)
    assert "resnet18, horovod, 2 workers, fp32, batch 32" in seen.text and "single" not in seen.text
    assert seen.configurations == (TWO.trial().configuration,)


@pytest.mark.parametrize(("first", "seen"), [(1.2, False), (9.0, True)])
def test_f1_first_steps_that_are_still_warming_up(tmp_path: Path, first: float, seen: bool) -> None:
    def slow(rank: Any) -> Mapping[str, Any]:
        return {"step_seconds": [first * rank.step_seconds[0], *rank.step_seconds[1:]]}

    done = plant_flawed(tmp_path, [ONE, Flawed(TWO, slow)])
    assert ("F1" in flaws(done)) == seen
    if seen:
        assert (
            "In every repeat the first timed step takes more than 2 x the usual one, up to 9" in found(done, "F1").text
        )


@pytest.mark.parametrize(("change", "flaw"), [(0.9, "F1"), (1.1, "slowing"), (0.995, None)])
def test_f1_steps_that_become_faster_or_slower_within_the_window(
    tmp_path: Path, change: float, flaw: str | None
) -> None:
    def ramped(rank: Any) -> Mapping[str, Any]:
        return {"step_seconds": [rank.step_seconds[0] * change ** (i / 9) for i in range(10)]}

    done = plant_flawed(tmp_path, [ONE, Flawed(replace(TWO, repeats=5, steps=10), ramped)])
    assert flaws(done) & {"F1", "slowing"} == ({flaw} if flaw else set())
    if flaw:
        seen = found(done, flaw)
        assert seen.severity == DOUBT and seen.configurations == (TWO.trial().configuration,)


def test_a_trend_of_one_repeat_is_no_trend_of_a_configuration(tmp_path: Path) -> None:
    done = plant_flawed(tmp_path, [ONE, TWO])
    done.trials.loc[done.trials.index[-1], "step_trend"] = -0.5
    assert not flaws(done) & {"F1", "slowing"}


def test_f1_a_single_slow_first_step_is_no_pattern(tmp_path: Path) -> None:
    done = plant_flawed(tmp_path, [ONE, TWO])
    facts = done.details.facts
    facts.loc[facts.index[0], "first_step"] = 9.0  # of one repeat of three
    assert "F1" not in flaws(done)


@pytest.mark.parametrize("repeats", [1, 2])
def test_f2_too_few_repeats(tmp_path: Path, repeats: int) -> None:
    seen = found(plant_flawed(tmp_path, [ONE, replace(TWO, repeats=repeats)]), "F2")
    assert seen.severity == DOUBT and "1 of 2 configurations had fewer than 3 repeats that are ok" in seen.text


@pytest.mark.parametrize("kernels", [0, 5, None])
def test_f3_a_horovod_built_with_nccl_that_does_not_use_it(tmp_path: Path, kernels: int | None) -> None:
    about = {"backend": {"controller": "mpi", "operations": "NCCL"}, "nccl_kernels": kernels, "transport": "TCP"}
    done = plant_flawed(tmp_path, [replace(ONE, keys=CUDA), Flawed(replace(TWO, keys=CUDA), about)], machine=GPUS)
    assert ("F3" in flaws(done)) == (kernels == 0)
    (carrier,) = set(done.configurations.carrier) - {""}
    assert carrier == ("MPI over TCP" if kernels == 0 else "NCCL over TCP")


@pytest.mark.parametrize(("controller", "unlike"), [("mpi", True), ("gloo", False)])
def test_frameworks_whose_gradients_are_carried_by_unlike_means(tmp_path: Path, controller: str, unlike: bool) -> None:
    way = "shared memory" if controller == "mpi" else "TCP"
    horovod = Flawed(TWO, {"backend": {"controller": controller, "operations": "host"}, "transport": way})
    ddp = replace(TWO, framework="torch_ddp")
    done = plant_flawed(tmp_path, [ONE, horovod, Flawed(ddp, {"backend": {"backend": "gloo"}, "transport": "TCP"})])
    assert ("carriers" in flaws(done)) == unlike
    if unlike:
        seen = found(done, "carriers")
        assert "MPI over shared memory (horovod); Gloo over TCP (torch_ddp)" in seen.text and seen.severity == DOUBT
        assert ONE.trial().configuration not in seen.configurations
        assert "Gradients are carried by unlike means" in " ".join(throughput.throughput(done, "resnet18").notes)


@pytest.mark.parametrize(("share", "unlike"), [(0.05, True), (0.5, False), (None, False)])
def test_frameworks_of_which_only_some_hide_their_communication(
    tmp_path: Path, share: float | None, unlike: bool
) -> None:
    sharded = Planted("torch_fsdp2", workers=2, allreduce="fp32", speed=170.0)
    done = plant_flawed(tmp_path, [ONE, Flawed(TWO, {"overlap": 0.7}), Flawed(sharded, {"overlap": share})])
    assert ("overlap" in flaws(done)) == unlike
    if unlike:
        seen = found(done, "overlap")
        assert "in horovod (up to 70 % of its time in flight), in torch_fsdp2 in at most 5 %" in seen.text
        assert seen.severity == NOTE


@pytest.mark.parametrize("operations", ["host", "NCCL"])
def test_f3_horovod_without_nccl(tmp_path: Path, operations: str) -> None:
    ours = replace(TWO, keys=CUDA)
    about = {"backend": {"version": "0.28.1", "controller": "mpi", "operations": operations}}
    done = plant_flawed(tmp_path, [replace(ONE, keys=CUDA), Flawed(ours, about)], machine=GPUS)
    assert ("F3" in flaws(done)) == (operations == "host")
    if operations == "host":
        seen = found(done, "F3").text
        assert "through the host (host) instead of NCCL" in seen and "measured: resnet18, horovod" in seen
        assert seen.endswith("Build Horovod with NCCL operations, and run these again.")


def test_f3_on_a_cpu_the_host_is_where_gradients_are(tmp_path: Path) -> None:
    assert flaws(plant_flawed(tmp_path, [ONE, Flawed(TWO, {"backend": {"operations": "host"}})])) == set()


CLIFF = [
    Planted(batch_per_worker=batch, speed=speed) for batch, speed in ((256, 4657.0), (512, 4700.0), (1024, 1349.0))
]


def test_f4_a_cliff_without_a_cause(tmp_path: Path) -> None:
    seen = found(plant_flawed(tmp_path, CLIFF), "F4")
    assert (seen.title, seen.severity) == ("A cliff along the batch size, without a cause", DOUBT)
    assert re.search(r"batch 1024: 29 % \(at most \d\d %\) of the samples per second at batch 512, and ", seen.text)
    assert "Look for its cause" in seen.text
    assert seen.configurations == tuple(one.trial().configuration for one in CLIFF[1:])


def test_f4_published_single_runs_show_it_too(tmp_path: Path) -> None:
    seen = found(plant_flawed(tmp_path, [replace(one, repeats=1) for one in CLIFF]), "F4")
    assert "29 % (too few repeats for an interval)" in seen.text


def test_f4_a_cliff_whose_cause_the_phases_name(tmp_path: Path) -> None:
    mean = 1024 / 1349.0
    loader = Phases(4, mean, 0.78 * mean, 0.05 * mean, 0.1 * mean, None, 0.02 * mean, 0.05 * mean)
    done = plant_flawed(tmp_path, [*CLIFF[:2], Flawed(CLIFF[2], {"phases": loader})])
    seen = found(done, "F4")
    assert (seen.title, seen.severity) == ("A cliff along the batch size", NOTE)
    assert re.search(r"and \d\d\d? % of the time added to a sample is in data\. Its loader does not keep up", seen.text)


@pytest.mark.parametrize("speed", [4500.0, 5000.0])
def test_f4_what_falls_a_little_is_no_cliff(tmp_path: Path, speed: float) -> None:
    assert flaws(plant_flawed(tmp_path, [*CLIFF[:2], replace(CLIFF[2], speed=speed)])) == set()


def test_f5_two_models_with_one_parameter_count(tmp_path: Path) -> None:
    big = replace(ONE, model="resnet50")
    seen = found(plant_flawed(tmp_path, [ONE, Flawed(big, {"parameters": 11_181_642})]), "F5")
    assert seen.text.startswith(
        "resnet18 and resnet50 have 11,181,642 parameters each: very probably they are one model under several names. "
    )
    assert seen.severity == WRONG and flaws(plant_flawed(tmp_path / "sound", [ONE, big])) == set()


def test_f5_one_model_with_two_parameter_counts(tmp_path: Path) -> None:
    seen = found(plant_flawed(tmp_path, [ONE, Flawed(TWO, {"parameters": 23_528_522})]), "F5")
    assert "have unlike parameter counts, so they train unlike models: 11,181,642 in resnet18, single" in seen.text


def test_f5_known_variants_may_have_as_many() -> None:
    assert work._related("transformer_lm", "transformer_lm_unmasked")
    assert work._related("resnet8_groupnorm", "resnet8") and not work._related("resnet18", "resnet50")
    assert not work._related("one of mine", "another of mine")


def waiting(share: float, mean: float = 0.32) -> dict[str, Any]:
    rest = (1 - share) * mean / 4
    return {"phases": Phases(4, mean, share * mean, rest, rest, None, rest, rest)}


def test_f6_a_loader_that_is_measured(tmp_path: Path) -> None:
    done = plant_flawed(tmp_path, [ONE, Flawed(TWO, waiting(0.6))])
    seen = found(done, "F6")
    assert "More than 10 % of a step goes into waiting for its batch in 1 configuration: resnet18, hor" in seen.text
    assert "most, 60 %, in resnet18, horovod" in seen.text
    assert "F28" not in flaws(done)


FP16 = (("precision", "bf16"),)


def test_f7_two_meanings_of_sixteen_bits(tmp_path: Path) -> None:
    """The published pair: Horovod's fp16 is the wire, FSDP's is the computing, and both have an fp32 beside it."""
    wire = [TWO, replace(TWO, allreduce="fp16", speed=200.0)]
    fsdp = Planted("torch_fsdp2", workers=2, allreduce="fp32", speed=190.0)
    narrow = replace(fsdp, speed=250.0, keys=FP16)
    seen = found(plant_flawed(tmp_path, [ONE, *wire, fsdp, narrow]), "F7")
    assert (
        "16 bits mean computing in them in torch_fsdp2, and fp32 computing with 16-bit gradients on the wire in horo"
        in seen.text
    )
    assert len(seen.configurations) == 2
    both_ways = [ONE, *wire, fsdp, narrow, replace(fsdp, allreduce="fp16", speed=195.0)]
    assert "F7" not in flaws(plant_flawed(tmp_path / "both", both_ways)), "FSDP was run both ways"


def test_f7_unlike_precision_on_the_wire(tmp_path: Path) -> None:
    """One framework's table at fp32 on the wire, the other's at fp16: their difference is one of precision."""
    fsdp = Planted("torch_fsdp2", workers=2, allreduce="fp16", speed=190.0)
    seen = found(plant_flawed(tmp_path, [ONE, TWO, fsdp]), "F7")
    assert "horovod in fp32; torch_fsdp2 in fp16" in seen.text and "reduce gradients in" in seen.text
    both = plant_flawed(tmp_path / "both", [ONE, TWO, fsdp, replace(fsdp, allreduce="fp32")])
    assert flaws(both) == set(), "they have fp32 in common"


@pytest.mark.parametrize("running", [19.5, 40.0])
def test_f8_an_epoch_with_more_in_it_than_its_steps(tmp_path: Path, running: float) -> None:
    """60 steps of 0.32 s, and a launch or a checkpoint in the epoch's own time."""
    last = {"warmup": False, "steps": 60, "samples": 1920, "data_seconds": 0.5, "training_seconds": 18.0}
    epoch = Flawed(replace(ONE, keys=(("epochs", 1),)), {"epochs": [{**last, "running_seconds": running}]})
    done = plant_flawed(tmp_path, [epoch])
    assert ("F8" in flaws(done)) == (running > 20)
    if running > 20:
        assert "the epoch lasted 40.0 s, and its 60 steps 19.3 s" in found(done, "F8").text


def test_f9_samples_that_do_not_add_up(tmp_path: Path) -> None:
    done = plant_flawed(tmp_path, [ONE, Flawed(TWO, lambda rank: {"samples_seen": rank.samples_seen // 2})])
    seen = found(done, "F9")
    assert seen.severity == WRONG and "saw 1,920 in 60 steps of 64" in seen.text


def test_f9_epochs_of_2929_and_of_50_batches(tmp_path: Path) -> None:
    seen = found(
        plant_flawed(tmp_path, [Flawed(ONE, {"steps_per_epoch": 2929}), Flawed(TWO, {"steps_per_epoch": 50})]), "F9"
    )
    assert "has 3,200 samples" in seen.text and "93,728" in seen.text
    tail = [Flawed(ONE, {"steps_per_epoch": 1562}), Flawed(TWO, {"steps_per_epoch": 781})]
    assert flaws(plant_flawed(tmp_path / "tail", tail)) == set()
    trained = [replace(one, keys=(*one.keys, ("train_epochs", 3))) for one in (ONE, TWO)]
    fewer = [Flawed(trained[0], {"steps_per_epoch": 1400}), Flawed(trained[1], {"steps_per_epoch": 700})]
    assert "F9" not in flaws(plant_flawed(tmp_path / "held-out", [*tail, *fewer]))


def test_f9_unlike_data(tmp_path: Path) -> None:
    done = plant_flawed(tmp_path, [ONE, Flawed(TWO, {"data_source": "synthetic (CIFAR-10 is not there)"})])
    assert "cifar10 in resnet18, single, batch 32; synthetic in resnet18, horovod" in found(done, "F9").text


def test_f10_a_variant_beside_its_original(tmp_path: Path) -> None:
    text = Planted("single", "transformer_lm", 16, tokens=35)
    seen = found(plant_flawed(tmp_path, [text, replace(text, model="transformer_lm_unmasked")]), "F10")
    assert "transformer_lm_unmasked is a variant of transformer_lm and not it: no causal mask" in seen.text


@pytest.mark.parametrize(
    ("fault", "passed", "title"),
    [("loss of step 3: off by 0.2", True, "Parity failed"), ("", False, "Parity not checked")],
)
def test_f10_what_trains_something_else(tmp_path: Path, fault: str, passed: bool, title: str) -> None:
    plant(tmp_path, [ONE, TWO], **SINGLE)
    if passed:
        plant_gates(tmp_path, [ONE, TWO], {"horovod": fault})
    seen = found(results.read(tmp_path), "parity")
    assert seen.title == title and fault in seen.text
    assert seen.severity == (WRONG if passed else DOUBT)


def test_f13_another_batch_at_one_rate_in_measured_epochs(tmp_path: Path) -> None:
    epochs = {"epochs": 1, "warmup_epochs": 1}
    pair = [replace(one, keys=tuple(epochs.items())) for one in (ONE, DDP)]
    seen = found(plant_flawed(tmp_path, [Flawed(one, {"learning_rate": 0.001}) for one in pair]), "F13")
    assert "global batches of 32 and 64 samples at one learning rate (0.001)" in seen.text and seen.severity == DOUBT


def test_f14_gloo_on_gpus(tmp_path: Path) -> None:
    pair = [replace(one, keys=CUDA) for one in (ONE, DDP)]
    done = plant_flawed(tmp_path, [pair[0], Flawed(pair[1], {"backend": {"backend": "gloo"}})], machine=GPUS)
    seen = found(done, "F14").text
    assert "go through the host (gloo) instead of NCCL" in seen and "is measured: resnet18, torch_ddp" in seen
    nccl = [pair[0], Flawed(pair[1], {"backend": {"backend": "nccl", "version": "2.28"}})]
    assert flaws(plant_flawed(tmp_path / "nccl", nccl, machine=GPUS)) == set()
    shared = replace(DDP, keys=(*CUDA, ("oversubscribe", True)))  # NCCL refuses two ranks on a GPU
    read = plant_flawed(tmp_path / "shared", [pair[0], Flawed(shared, {"backend": {"backend": "gloo"}})], machine=GPUS)
    assert "F14" not in flaws(read)


def test_f15_weights_that_no_stage_has(tmp_path: Path) -> None:
    """Two stages of 100 and 200 parameters, of a model that has 1,000."""
    done = results.read(plant_pipelines(tmp_path, [Pipeline("gpipe", p=2, m=4)]))
    seen = found(done, "F15")
    assert seen.severity == WRONG and "700 of 1,000 parameters are in no stage: they are never trained" in seen.text
    assert "F15" not in flaws(replace(done, configurations=done.configurations.assign(parameters=300)))


def test_f16_a_cut_that_caps_the_speed_up(tmp_path: Path) -> None:
    published = Pipeline("gpipe", p=4, m=7, shares=(0.24, 0.21, 0.485, 0.065), batch=28)
    seen = found(results.read(plant_pipelines(tmp_path, [published])), "F16")
    assert (
        "The stages take 24 / 21 / 48 / 6.5 % of the time: on 4 workers no schedule is faster than 2.06 x" in seen.text
    )
    assert "with its schedule and micro-batches at most 1.79 x" in seen.text
    even = replace(published, shares=())
    assert "F16" not in flaws(results.read(plant_pipelines(tmp_path / "even", [even])))


def test_f17_unlike_cores(tmp_path: Path) -> None:
    seen = found(plant_flawed(tmp_path, [Flawed(ONE, {"cores": [0, 1, 2, 3]}), TWO]), "F17")
    assert seen.title == "Unlike CPU cores" and "1 in resnet18, single" not in seen.text
    assert "4 in resnet18, single, batch 32" in seen.text and "1 in resnet18, horovod" in seen.text
    assert found(plant_flawed(tmp_path / "threads", [Flawed(ONE, {"threads": 16}), TWO]), "F17").title.endswith(
        "threads"
    )


def test_f19_the_global_batch_grows_and_the_rate_does_not(tmp_path: Path) -> None:
    rated = [Flawed(ONE, {"learning_rate": 1e-4}), Flawed(TWO, {"learning_rate": 1e-4})]
    seen = found(plant_flawed(tmp_path, rated), "F19")
    assert seen.severity == NOTE and seen.text.endswith("compare no losses and no accuracies.")
    scaled = [Flawed(ONE, {"learning_rate": 1e-4}), Flawed(TWO, {"learning_rate": 2e-4})]
    assert flaws(plant_flawed(tmp_path / "scaled", scaled)) == set()


def test_f21_one_framework_in_sixteen_bits_and_the_other_not(tmp_path: Path) -> None:
    fsdp = Planted("torch_fsdp2", workers=2, allreduce="fp32", speed=190.0, keys=FP16)
    seen = found(plant_flawed(tmp_path, [ONE, DDP, fsdp]), "F21")
    assert "torch_ddp in fp32; torch_fsdp2 in bf16" in seen.text and "difference is one of precision" in seen.text
    assert seen.text.endswith("Run them in one that they have in common.")
    assert flaws(plant_flawed(tmp_path / "alike", [ONE, DDP, fsdp, replace(fsdp, keys=())])) == set()


def test_f21_no_speed_up_is_taken_over_another_precision(tmp_path: Path) -> None:
    """Impossible by construction: the baseline of a bf16 row is a bf16 row, or there is none."""
    done = plant_flawed(tmp_path, [ONE, replace(DDP, keys=FP16)])
    row = done.configurations.set_index("framework").loc["torch_ddp"]
    assert row.speedup != row.speedup and "no baseline trial" in row.speedup_reason


def test_f24_one_unit_without_a_wrapping_policy(tmp_path: Path) -> None:
    fsdp = Planted("torch_fsdp2", workers=2, allreduce="fp32", speed=170.0)
    seen = found(plant_flawed(tmp_path, [ONE, Flawed(fsdp, {"backend": {"backend": "gloo", "units": 1}})]), "F24")
    assert "Sharded as one unit" in seen.text and "nothing overlaps: resnet18, torch_fsdp2" in seen.text
    wrapped = [ONE, Flawed(fsdp, {"backend": {"backend": "gloo", "units": 6}})]
    assert flaws(plant_flawed(tmp_path / "wrapped", wrapped)) == set()


def test_f28_a_baseline_that_waits_for_data(tmp_path: Path) -> None:
    """0.92 of 1.58 s a step, and "1.93 x"."""
    done = plant_flawed(tmp_path, [Flawed(ONE, waiting(0.92 / 1.58)), TWO])
    seen = found(done, "F28")
    assert seen.text.startswith("The baseline (resnet18, single, batch 32) waits 58 % of a step for its batch, so ")
    assert set(seen.configurations) == {ONE.trial().configuration, TWO.trial().configuration}


# --- runs that were trained to a result ---

FLAWS = {
    "F11": ({"groups": [{"name": "backbone", "parameters": 11_176_512, "learning_rate": 0.0}]},
            "Frozen networks are compared, at a learning rate of 0: backbone (11,176,512 parameters)"),
    "F12": ({"logged_loss": "last batch"}, "that of the last batch, not of an epoch"),
    "F18": ({"in_both": {"validation/test": 10_000}}, "10,000 samples of the test set are in the validation set"),
    "F20": ({"resumed_layout": "77aa"}, "a checkpoint whose weights have other names or shapes"),
    "F22": ({"splits": {"train": {"train": 41_667, "test": 8_333}, "test": {"train": 8_333, "test": 1_667}}},
            "Train and test set were joined and split anew"),
    "F25": ({"orders": ["a1", "a1", "a1"]}, "3 epochs read their samples in 1 order"),
    "F27": ({"evaluated": {"split": "test", "samples": 5_000, "accuracy": 0.84}},
            "over 5,000 of the 10,000 samples of the test set"),
}  # fmt: skip


UNMOVED = {
    "groups": [{"name": "instrument", "parameters": 295_494, "learning_rate": 1e-3},
               {"name": "backbone", "parameters": 11_176_512, "learning_rate": 1e-4}],
    "moved": {"instrument": 0.2, "backbone": 0.0},
}  # fmt: skip
FROZEN = {
    "groups": [{"name": "instrument", "parameters": 295_494, "learning_rate": 1e-3},
               {"name": "backbone", "parameters": 11_176_512, "learning_rate": 0.0, "asked": True}],
    "moved": {"instrument": 0.2, "backbone": 0.0},
}  # fmt: skip


def trained(folder: Path, **changes: Any) -> set[Finding]:
    said = {**TRAINED, **changes}
    done = plant_flawed(folder, [Flawed(ONE, {"training": said}), Flawed(TWO, {"training": said})])
    return set(warnings.all_findings(done))


def test_f11_a_part_that_is_said_to_train_and_did_not_move(tmp_path: Path) -> None:
    (seen,) = trained(tmp_path / "unmoved", **UNMOVED)
    assert seen.flaw == "F11"
    assert "said to be trained, and did not move: backbone (learning rate 0.0001)" in seen.text
    assert trained(tmp_path / "frozen", **FROZEN) == set(), "the trial says so"
    (moved,) = trained(tmp_path / "moved", **{**FROZEN, "moved": {"instrument": 0.2, "backbone": 1e-3}})
    assert moved.flaw == "F11" and "said to be frozen, and moved: backbone" in moved.text


def test_a_sound_training_has_no_findings(tmp_path: Path) -> None:
    assert trained(tmp_path) == set()


def test_running_text_in_one_order_and_a_test_set_by_another_name_are_sound(tmp_path: Path) -> None:
    splits = {"train": {"train": 7_600}, "validation": {"train": 850}, "test": {"development": 1_043}}
    evaluated = {"split": "test", "samples": 1_043, "matthews": 0.4}
    said = {"orders": ["a1", "a1", "a1"], "one_order": "running text is read as it runs"}
    assert trained(tmp_path, splits=splits, evaluated=evaluated, **said) == set()


@pytest.mark.parametrize("flaw", FLAWS)
def test_f11_f12_f18_f20_f22_f25_f27_in_planted_records(flaw: str, tmp_path: Path) -> None:
    changes, text = FLAWS[flaw]
    (seen,) = trained(tmp_path, **changes)
    assert seen.flaw == flaw and text in seen.text and len(seen.configurations) == 2


def test_f12_maps_of_hidden_channels_and_the_least_likely_class(tmp_path: Path) -> None:
    (seen,) = trained(tmp_path, shown_maps={"channels": "hidden", "class": "least likely"})
    assert seen.flaw == "F12" and seen.severity == WRONG
    assert seen.text.startswith("The activation maps shown are of hidden channels and of the least likely class (")


def test_f18_the_test_set_by_its_own_name(tmp_path: Path) -> None:
    (seen,) = trained(tmp_path, selected_on="test")
    assert seen.flaw == "F18" and seen.text.startswith("The test set selects the model")


def test_f22_test_samples_that_are_trained_on(tmp_path: Path) -> None:
    (seen,) = trained(tmp_path, in_both={"test/train": 12})
    assert seen.flaw == "F22" and seen.text.startswith("12 samples of the test set are trained on")


def test_f22_validation_samples_that_are_trained_on(tmp_path: Path) -> None:
    """As a published loader of operations has it, whose validation videos are the last of its training videos."""
    (seen,) = trained(tmp_path, in_both={"train/validation": 4_500})
    assert seen.flaw == "F22" and seen.severity == WRONG
    assert seen.text.startswith("4,500 of the 5,000 samples of the validation set are trained on (")


def test_passages_that_recur_in_a_published_text_are_no_flaw(tmp_path: Path) -> None:
    assert trained(tmp_path, in_both={"train/validation": 2}) == set()


def test_f27_ranks_that_claim_unlike_figures(tmp_path: Path) -> None:
    def own(rank: Any) -> Mapping[str, Any]:
        return {"training": {**TRAINED, "evaluated": {**TRAINED["evaluated"], "accuracy": 0.8 + 0.1 * rank.rank}}}

    seen = found(plant_flawed(tmp_path, [Flawed(ONE, {"training": TRAINED}), Flawed(TWO, own)]), "F27")
    assert seen.text.startswith("Ranks claim unlike figures of one evaluation")


def test_f23_strategies_with_unlike_optimiser_steps(tmp_path: Path) -> None:
    said = {"training": TRAINED, "learning_rate": 0.001}
    large = replace(DDP, batch_per_worker=4096, speed=190.0)
    fsdp = Planted("torch_fsdp2", "resnet18", 640, 2, "fp32", 180.0)
    seen = found(plant_flawed(tmp_path, [Flawed(large, said), Flawed(fsdp, said)], baseline=None), "F23")
    assert "unlike global batches (torch_ddp 8192; torch_fsdp2 1280)" in seen.text and seen.severity == WRONG
    alike = [Flawed(large, said), Flawed(replace(fsdp, batch_per_worker=4096), said)]
    assert flaws(plant_flawed(tmp_path / "alike", alike, baseline=None)) == set()


def test_f26_a_doubled_batch_at_one_rate_in_a_result(tmp_path: Path) -> None:
    said = {"training": TRAINED, "learning_rate": 0.1}
    seen = found(
        plant_flawed(tmp_path, [Flawed(replace(DDP, workers=n, speed=100.0 * n), said) for n in (2, 4)]), "F26"
    )
    assert "global batches of 64 and 128 samples at one learning rate (0.1)" in seen.text and seen.severity == WRONG


def test_f19_other_numbers_of_workers_at_one_rate_in_a_result(tmp_path: Path) -> None:
    """As on one, two and three GPUs: not only doubled."""
    said = {"training": TRAINED, "learning_rate": 0.1}
    seen = found(
        plant_flawed(tmp_path, [Flawed(replace(DDP, workers=n, speed=100.0 * n), said) for n in (2, 3, 4)]), "F19"
    )
    assert "global batches of 64 and 96 and 128 samples at one learning rate (0.1)" in seen.text
    assert seen.severity == WRONG and "Scale the rate with the batch" in seen.text


@pytest.mark.parametrize(
    "said",
    [{"groups": 3}, {"groups": [{}]}, {"splits": {"train": 3}}, {"in_both": {"a/b": "x"}}, {"orders": {"a": 1}},
     {"evaluated": []}, {"groups": [{"name": 3, "parameters": 1, "learning_rate": 1}]}],
    ids=str,
)  # fmt: skip
def test_a_training_of_no_right_shape_is_refused(said: dict[str, Any]) -> None:
    with pytest.raises((ValueError, TypeError, KeyError, AttributeError)):
        Training.of(said)


def test_a_record_whose_training_has_no_right_shape_is_skipped_by_name(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="is not whole: training.orders is no list"):
        done = plant_flawed(tmp_path, [ONE, Flawed(TWO, {"training": {"orders": "a1"}})])
    assert set(done.configurations.framework) == {"single"}


# --- findings of our own ---


def test_superlinear_speed_up(tmp_path: Path) -> None:
    seen = found(plant_flawed(tmp_path, [ONE, replace(TWO, speed=1200.0)]), "superlinear")
    assert seen.severity == WRONG and re.search(r"most, 1[12]\.\d\d x on 2 workers, at least 1[01]\.\d\d x", seen.text)


@pytest.mark.parametrize(("speed", "seen"), [(230.0, False), (1200.0, True)])
def test_superlinear_from_a_single_repeat(tmp_path: Path, speed: float, seen: bool) -> None:
    done = plant_flawed(tmp_path, [ONE, replace(TWO, speed=speed, repeats=1)])
    assert ("superlinear" in flaws(done)) == seen
    if seen:
        assert found(done, "superlinear").severity == DOUBT


def test_a_baseline_of_two_workers_is_no_reason_for_alarm(tmp_path: Path) -> None:
    four = replace(TWO, workers=4, speed=350.0)
    assert flaws(plant_flawed(tmp_path, [TWO, four], baseline={"workers": 2})) == set()


def test_a_machine_that_was_not_quiet(tmp_path: Path) -> None:
    busy = {"own_cpu_seconds": 0.0, "host_cpu_seconds": 100.0}
    seen = found(plant_flawed(tmp_path, [ONE, Flawed(TWO, busy)]), "busy")
    assert seen.text.startswith("During 3 of 3 runs other processes kept more than 0.2 cores busy")
    assert seen.configurations == (TWO.trial().configuration,)


@pytest.mark.parametrize(("in_window", "seen"), [(2, True), (0, False), (None, False)])
def test_timed_steps_that_the_loss_scaler_left_out(tmp_path: Path, in_window: int | None, seen: bool) -> None:
    left_out = {"warmup_skipped_steps": 3, "skipped_steps": in_window}  # those of the warm-up are what it is for
    done = plant_flawed(tmp_path, [ONE, Flawed(TWO, left_out)])
    flaws = [one for one in warnings.all_findings(done) if one.flaw == "skipped steps"]
    assert len(flaws) == seen
    if seen:
        assert flaws[0].severity == DOUBT and "up to 2 optimiser steps of a timed window" in flaws[0].text
        assert flaws[0].configurations == (TWO.trial().configuration,)


def test_synthetic_data_is_a_note(tmp_path: Path) -> None:
    planted, about = default_study(synthetic=True)
    plant(tmp_path, planted, **about)
    assert found(results.read(tmp_path), "synthetic").severity == NOTE


def test_drawn_scenes_are_no_operations(tmp_path: Path) -> None:
    said = {"data_source": "surgical_scenes (synthetic scenes)"}
    seen = found(plant_flawed(tmp_path, [Flawed(ONE, said), Flawed(TWO, said)]), "synthetic")
    assert seen.severity == NOTE and seen.text.endswith("figures are of drawn scenes, and of no operation.")


def test_a_loss_that_is_not_finite(tmp_path: Path) -> None:
    assert (
        "resnet18, horovod"
        in found(plant_flawed(tmp_path, [ONE, Flawed(TWO, {"notes": ["the loss is not finite"]})]), "loss").text
    )


def test_several_versions_and_commits(tmp_path: Path) -> None:
    old = {"versions": {"torch": "2.4.1", "scaling_study": "0.1"}}
    new = {"versions": {"torch": "2.5.0", "scaling_study": "0.2"}}
    done = plant_flawed(tmp_path, [Flawed(ONE, old, {"commit": "aaa"}), Flawed(TWO, new, {"commit": "bbb"})])
    assert "difference may be theirs: torch 2.4.1 (3 trials), 2.5.0 (3 trials)." in found(done, "versions").text
    assert found(done, "commits").severity == NOTE


# --- what a finding is ---


def test_the_worst_comes_first_and_each_once(tmp_path: Path) -> None:
    done = plant_flawed(tmp_path, [Flawed(replace(ONE, repeats=1), {"warmup_seconds": []}), Flawed(TWO, waiting(0.5))])
    seen = warnings.all_findings(done)
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

    monkeypatch.setattr(catalog, "VIEWS", (View("Is it?", detectors=(Detector(broken),)), *catalog.VIEWS))
    done = plant_flawed(tmp_path, [replace(ONE, repeats=1)])
    assert flaws(done) == {"unchecked", "F2"}
    assert "could not be made: KeyError: 'workers'" in found(done, "unchecked").text


def test_a_severity_is_one_of_three() -> None:
    with pytest.raises(ValueError, match="severity 'loud' is none of wrong, doubt, note"):
        Finding("F1", "", "", "loud")


def test_long_lists_are_cut(tmp_path: Path) -> None:
    many = [Planted(batch_per_worker=2**k, speed=100.0, repeats=1) for k in range(8)]
    done = plant_flawed(tmp_path, [*many, TWO])
    assert "batch 1; resnet18, single, batch 2; resnet18, single, batch 4 and 5 more" in found(done, "F2").text


def test_words_of_others_cannot_command_a_terminal(tmp_path: Path) -> None:
    evil = {"backend": {"backend": "gloo\x1b[2J"}, "versions": {"\x1b[2Jtorch": "1"}}
    done = plant_flawed(tmp_path, [ONE, Flawed(TWO, evil, {"commit": "\x1b[2J"})])
    assert all(str(value).isprintable() for value in done.details.facts.to_numpy().ravel())
    assert communication.THROUGH_THE_HOST and all(one.text.isprintable() for one in warnings.all_findings(done))


def test_records_of_before_have_no_facts_and_no_false_alarm(tmp_path: Path) -> None:
    done = plant_flawed(tmp_path, [ONE, TWO])
    empty = replace(done, details=replace(done.details, facts=done.details.facts.iloc[:0]))
    assert warnings.all_findings(empty) == [] and Evidence(empty).fact(Evidence(empty).rows[0], "cores") == []


# --- in the terminal ---


def printed(done: Results) -> str:
    console = Console(width=200, record=True, file=io.StringIO())
    terminal.show(done, console)
    return console.export_text()


def test_the_terminal_prints_every_finding_the_worst_first_and_the_machine(tmp_path: Path) -> None:
    text = printed(plant_flawed(tmp_path, [Flawed(replace(ONE, repeats=1), {"warmup_seconds": []}), TWO]))
    warned = text[text.index("\nWarnings") :]
    assert warned.index("wrong: No warm-up (F1). Timed from") < warned.index("doubt: Too few repeats (F2)")
    assert "Noise floor: not known, too few repeats." in warned and "Drift: not known, too few repeats" in warned


def test_the_terminal_says_that_there_are_none(tmp_path: Path) -> None:
    assert "No warnings" in printed(plant_flawed(tmp_path / "sound", [ONE, TWO]))
    assert "arnings" not in printed(results.read(plant(tmp_path / "empty", [])))


def test_words_of_others_are_text_in_the_terminal_too(tmp_path: Path) -> None:
    done = plant_flawed(tmp_path, [ONE, Flawed(TWO, {}, {"commit": "[bold red]x"})])
    done.details.facts.loc[done.details.facts.index[0], "commit"] = "y"
    assert "[bold red]x (2 trials)" in printed(done)


def test_what_was_not_measured_in_turns_is_doubted(tmp_path: Path) -> None:
    """Both were run three times, one of them two hours later: after `--where`, an addition or extra repeats."""
    later = Flawed(TWO, {}, {"started_at": "2026-01-31T12:03:00+00:00"})
    seen = found(plant_flawed(tmp_path, [ONE, later]), "apart")
    assert seen.severity == "doubt" and "up to 120 minutes apart" in seen.text and len(seen.configurations) == 2
    assert "apart" not in flaws(plant_flawed(tmp_path / "turns", [ONE, TWO]))


# --- which flaws were looked for ---


def test_a_study_of_two_frameworks_states_what_it_cannot_show(tmp_path: Path) -> None:
    """One batch size, no GPU, no pipeline, no epochs, and nothing trained to a result."""
    said = warnings.sentence(Evidence(plant_flawed(tmp_path, [ONE, TWO])))
    assert said == (
        "11 of the 28 flaws of published studies were looked for (docs/flaws.md). Not looked for: F3, F14 (no trial "
        "ran on several GPUs); F4 (nothing was run at several batch sizes); F8, F13 (no whole epochs were timed); F11, "
        "F12, F18, F20, F22, F23, F25, F26, F27 (no run was trained to a result); F15, F16 (no pipeline was run); F24 "
        "(no framework reported units of sharded weights)."
    )


def test_a_run_that_is_trained_to_a_result_is_looked_at_for_the_flaws_of_training(tmp_path: Path) -> None:
    done = plant_flawed(tmp_path, [Flawed(ONE, {"training": TRAINED}), Flawed(TWO, {"training": TRAINED})])
    assert not set(warnings.OF_A_TRAINING) & set(warnings.not_looked_for(Evidence(done)))
    assert "no run was trained to a result" not in warnings.sentence(Evidence(done))


def test_the_page_quotes_what_is_stated_of_the_example() -> None:
    said = warnings.sentence(Evidence(results.read(example("cifar10-scaling"))))
    assert said.replace(" (docs/flaws.md)", "") in " ".join(PAGE.replace("\n> ", " ").split())


def test_each_flaw_of_a_detector_is_looked_for_or_has_its_reason() -> None:
    reasons = [flaw for flaws, _, _ in warnings.NEEDED for flaw in flaws]
    assert len(reasons) == len(set(reasons)) and set(reasons) <= set(warnings.PUBLISHED)
    assert [flaw for flaw, _ in TABLE] == list(warnings.PUBLISHED)


# --- the table of the page ---

PAGE = (CHECKOUT / "docs" / "flaws.md").read_text(encoding="utf-8")
TABLE = re.findall(r"^\| (F\d+) \|.*\|([^|]*)\|$", PAGE, re.MULTILINE)


def test_every_flaw_has_its_row_in_the_page_with_the_tests_that_show_it() -> None:
    assert [f"F{number}" for number in range(1, 29)] == [flaw for flaw, _ in TABLE]
    assert all(re.findall(r"`(test_\w+)`", shown) for _, shown in TABLE)


def test_every_test_that_the_table_names_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", PAGE))
    exist = {
        node.name
        for path in (CHECKOUT / "tests").rglob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef)
    }
    assert len(named) >= 28 and named <= exist, named - exist
