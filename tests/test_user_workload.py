"""A workload that is not ours: the example package, installed by pip, and trained for real under three frameworks."""

from __future__ import annotations

import csv
import importlib
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

import forked
import planted_optimizers as planted
import pytest
import torch

import scaling_study
from analysis.frames import results
from scaling_study.records import store
from scaling_study.records.schema import Record
from scaling_study.settings import CHECKOUT

pytestmark = pytest.mark.slow
BIN = Path(sys.executable).parent
PARAMETERS = 8 * 64 + 64 + 64 + 1
STEPS, BATCH = 10, 8

STUDY = """\
study: mine
measure: {warmup_steps: 1, min_steps: 10, min_seconds: 0, repeats: 1, max_repeats: 1}
sweeps:
  - framework: torch_ddp
    matrix: {model: [sine_mlp, "own.py:load"]}
    workers: 2
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which the package is installed; nothing of it reaches the environment or the checkout."""
    folder = tmp_path_factory.mktemp("installed")
    source = shutil.copytree(CHECKOUT / "examples" / "workload_package", folder / "source")  # builds leave traces
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*pip, "--target", str(folder / "site"), str(source)], check=True, timeout=600)
    return folder / "site"


@pytest.fixture(scope="module")
def run(site: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """run(argv, cwd) with the installed package on the path."""

    def started(argv: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
        return forked.ended(forked.launch(argv, cwd=cwd, path=(site,)))

    return started


@pytest.fixture(scope="module")
def trained(
    run: Callable[..., subprocess.CompletedProcess[str]], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Path]:
    """trained("horovod"): the folder that its ranks left, with every loss and sample; each framework runs once."""
    folder = tmp_path_factory.mktemp("trained")
    two = {
        "single": [sys.executable, "data_parallel/single.py"],
        "horovod": ["horovodrun", "-np", "2", "--gloo", sys.executable, "horovod_runs/resnet_cifar10.py"],
        "torch_ddp": ["torchrun", "--standalone", "--nproc-per-node", "2", "data_parallel/torch_ddp.py"],
    }
    flags = ["--model", "sine_mlp", "--batch-per-worker", str(BATCH), "--precision", "fp64", "--find", "parity"]
    window = ["--steps", str(STEPS), "--warmup-steps", "0"]

    def once(framework: str) -> Path:
        record = folder / framework
        if not record.exists():
            record.mkdir()
            run([*two[framework], *flags, *window, "--record", str(record)], CHECKOUT)
        return record

    return once


def left_in(folder: Path, workers: int) -> list[dict]:
    return [torch.load(folder / "parity" / f"rank-{rank}.pt", weights_only=True) for rank in range(workers)]


@pytest.mark.parametrize(("framework", "workers"), [("single", 1), ("horovod", 2), ("torch_ddp", 2)])
def test_each_framework_trains_all_of_it_on_samples_of_its_own(trained, framework, workers):
    ranks = store.read_ranks(trained(framework), workers)
    assert [rank.parameters for rank in ranks] == [PARAMETERS] * workers
    assert [rank.samples_seen for rank in ranks] == [STEPS * BATCH] * workers
    assert {rank.data_source for rank in ranks} == {"sine"}
    assert ranks[0].allreduce_bytes == (0 if workers == 1 else PARAMETERS * 8)  # float64
    read = torch.cat([said["ids"].flatten() for said in left_in(trained(framework), workers)])
    assert len(read) == len(read.unique()) == workers * STEPS * BATCH


def test_horovod_and_ddp_train_the_same(trained):
    ours, theirs = left_in(trained("horovod"), 2), left_in(trained("torch_ddp"), 2)
    for a, b in zip(ours, theirs, strict=True):
        assert a["ids"].equal(b["ids"])
        assert a["losses"] == pytest.approx(b["losses"], rel=1e-12)
        assert len(set(a["losses"])) == STEPS  # it did train


def test_a_study_of_it_runs_from_plan_to_parity(run, tmp_path):
    study = tmp_path / "mine.yaml"
    study.write_text(STUDY, encoding="utf-8")
    shutil.copy(CHECKOUT / "examples" / "workload_package" / "sine_mlp.py", tmp_path / "own.py")
    command = [sys.executable, str(CHECKOUT / "run_sweep.py"), str(study)]
    (elsewhere := tmp_path / "elsewhere").mkdir()
    run([*command, "--results", str(tmp_path / "results"), "--quiet"], elsewhere)
    with (tmp_path / "results" / "mine" / "results.csv").open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert {(row["status"], row["parity"]) for row in rows} == {("ok", "passed")}
    assert {(row["model"], row["data"]) for row in rows} == {("sine_mlp", "auto"), ("own.py:load", "auto")}
    own = tmp_path / "own.py"
    own.write_text(f"{own.read_text()}# edited\n")
    again = run([*command, "--results", str(tmp_path / "results"), "--no-report"], elsewhere)
    assert re.findall(r"Warning: (\S+) was edited after \d+ of its finished trials", again.stdout) == ["own.py:load"]


IN_ROUNDS = """\
study: mine
measure: {warm: true, rounds: 3, block_seconds: 0.000001, warmup_steps: 1, min_steps: 3, min_seconds: 0, repeats: 1}
parity: false
sweeps:
  - framework: single
    model: sine_mlp
    matrix: {batch_per_worker: %s}
"""
CLEAN, HOOKED = len(planted.LEAKS) + 1, len(planted.LEAKS) + 2  # configurations are told apart by their batches
HOOK = f"""
if trial.batch_per_worker == {HOOKED}:
            nn.modules.module.register_module_forward_hook(lambda *_: None)
        chosen ="""


def changed(site: Path, tmp_path: Path, optimizer: str, further: Mapping[str, str] = MappingProxyType({})) -> Path:
    """A folder with the package, whose optimiser is one of tests/."""
    folder = shutil.copytree(site, tmp_path / "site")
    module, changes = folder / "sine_mlp.py", {
        "import torch\n": f"import {optimizer.partition('.')[0]}\nimport torch\n",
        "torch.optim.SGD(parameters, lr=rate)": f"{optimizer}(parameters, rate, trial.batch_per_worker)",
        **further,
    }  # fmt: skip
    for before, after in changes.items():
        assert before in module.read_text()
        module.write_text(module.read_text().replace(before, after, 1))
    return folder


def swept(folder: Path, study: str, site: Path) -> tuple[subprocess.CompletedProcess[str], list[Record]]:
    """A study of the package in `site`: how its sweep ended, and its records."""
    (folder / "mine.yaml").write_text(study, encoding="utf-8")
    words = [folder / "mine.yaml", "--results", folder / "results", "--quiet", "--no-report"]
    done = forked.launch([sys.executable, CHECKOUT / "run_sweep.py", *words], path=(site, CHECKOUT / "tests"))
    return done, list(store.read_study(folder / "results" / "mine"))


def test_what_it_leaves_behind_is_its_own_fault_and_no_others(site, tmp_path):
    """Of nineteen configurations in one process, seventeen change a setting for all, each another one, and one leaves a
    hook that every model of its process would run, so that it is measured alone."""
    leaking = changed(site, tmp_path, "planted_optimizers.Leaking", {"chosen =": HOOK.strip()})
    done, every = swept(tmp_path, IN_ROUNDS % [HOOKED, *range(1, HOOKED)], leaking)
    [alone] = [record for record in every if not record.trial.warm]
    records = {record.trial.batch_per_worker: record for record in every if record.trial.warm}
    assert sorted(records) == list(range(1, HOOKED + 1)), done.stderr
    hooked = records.pop(HOOKED)
    assert hooked.status == "failed" and (tmp_path / "results/mine/launches" / hooked.launch / "log.txt").exists()
    assert f"its log: {tmp_path / 'results/mine/launches' / hooked.launch / 'log.txt'}" in done.stdout
    counted = results.read(tmp_path / "results/mine").configurations.set_index("configuration").n
    assert (counted[alone.configuration], counted[hooked.configuration]) == (1, 0)
    assert (alone.status, alone.trial.batch_per_worker, alone.launch) == ("ok", HOOKED, "")
    assert "leaves behind in its process: hooks on every module" in hooked.reason + hooked.error
    assert {record.status for record in records.values()} == {"ok"}, [record.error for record in records.values()]
    assert records.pop(CLEAN).notes == []
    for number, name in enumerate(planted.LEAKS, 1):
        if name == "cores" and len(records[number].ranks[0].cores) == 1:
            continue  # there are no fewer to change to
        (note,) = records[number].notes
        assert name in note and note.endswith(" (put back)"), "and none was timed with another's"


FAILING = f"""\
study: mine
measure: {{warm: true, rounds: 7, block_seconds: 0.000001, warmup_steps: 1, min_steps: 7, min_seconds: 0, repeats: 1}}
parity: false
sweeps:
  - framework: single
    model: sine_mlp
    matrix:
      batch_per_worker:
        [{planted.CLEAN}, {planted.OUT_OF_MEMORY_AMONG_OTHERS}, {planted.OUT_OF_MEMORY}, {planted.LATE}]
  - framework: single
    model: sine_mlp
    allocator: system
    matrix: {{batch_per_worker: [{planted.CLEAN}, {planted.OPENING}]}}
"""


@pytest.mark.long
def test_what_fails_in_a_block_is_its_own_fault_and_no_others(site, tmp_path):
    """An out-of-memory is one only where a launch of its own repeats it. Whatever else fails among others is measured
    alone, and these keep the rounds that they had."""
    failing = changed(site, tmp_path, "planted_optimizers.Failing")
    done, every = swept(tmp_path, FAILING, failing)
    assert len(every) == 6 + 3, done.stderr
    cold = {record.trial.batch_per_worker: record for record in every if not record.trial.warm}
    assert sorted(cold) == [planted.OUT_OF_MEMORY_AMONG_OTHERS, planted.LATE, planted.OPENING]
    assert {record.status for record in cold.values()} == {"ok"}
    warm = {(r.trial.allocator, r.trial.batch_per_worker): r for r in every if r.trial.warm}
    among = "in a launch with others: rank 0: "
    expected = {
        planted.OUT_OF_MEMORY_AMONG_OTHERS: ("failed", f"{among}MemoryError: {planted.WORDS}"),
        planted.OUT_OF_MEMORY: ("oom", f"rank 0: {planted.WORDS}"),
        planted.LATE: ("failed", f"{among}ValueError: {planted.WORDS}"),
    }
    assert {n: (warm["fixed", n].status, warm["fixed", n].reason) for n in expected} == expected
    opening = warm["system", planted.OPENING]
    assert opening.status == "failed" and "open files, more with each block" in opening.reason + opening.error
    for allocator, whole, why in (("fixed", planted.LATE_ROUND, planted.WORDS), ("system", 5, "open files")):
        clean = warm[allocator, planted.CLEAN]
        assert (clean.status, len(clean.ranks[0].blocks)) == ("ok", whole)
        [note] = clean.notes
        assert note.startswith(f"its launch ended after {whole} of 7 blocks: rank 0: ") and why in note


def test_without_the_package_its_model_is_unknown():
    """What is installed above reached neither the environment nor the checkout."""
    done = forked.run([sys.executable, CHECKOUT / "data_parallel/single.py", "--model", "sine_mlp"])
    assert done.returncode == 2 and "invalid choice: 'sine_mlp'" in done.stderr


@pytest.mark.parametrize("former", sorted(scaling_study.MOVED))
def test_a_module_that_moved_is_found_under_its_former_name(former, monkeypatch):
    now = importlib.import_module(scaling_study.MOVED[former])
    spec = now.__spec__
    monkeypatch.delitem(sys.modules, former, raising=False)
    with pytest.warns(DeprecationWarning, match=f"{former} is now {now.__name__}"):
        assert importlib.import_module(former) is now
    assert now.__spec__ is spec and now.__name__ == scaling_study.MOVED[former]


def test_names_that_users_imported_before_are_there():
    for former, names in {
        "scaling_study.measure.phases": ("Phase",),
        "scaling_study.measure.rounds": ("Rounds",),
        "scaling_study.worker.ddp_settings": ("ddp_settings",),
        "scaling_study.workloads.chain": ("Chain",),
        "scaling_study.workloads.sampling": ("batches_of_indices", "steps_per_epoch"),
    }.items():
        assert all(hasattr(importlib.import_module(former), name) for name in names), former
