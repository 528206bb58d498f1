"""`model: my_model.py:load`: a model in a file beside the study, found by the plan and by each process of a trial."""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from rich.console import Console

from scaling_study import cli, models, sweep, workloads
from scaling_study.commands import dry_run
from scaling_study.errors import StudyError
from scaling_study.hosts.hosts import Host
from scaling_study.launch import inspection, launchers
from scaling_study.machine import Machine
from scaling_study.models import FOLDERS, MODELS, Model
from scaling_study.ranks import Ranks
from scaling_study.records import results
from scaling_study.settings import CHECKOUT
from scaling_study.study import plan, study
from scaling_study.study.plan import Plan
from scaling_study.study.support import ALONE, Cluster
from scaling_study.trial import Trial

GUIDE = (CHECKOUT / "docs/guide/your-own-model.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)
STUDY = "study: mine\nsweeps:\n  - framework: torch_ddp\n    matrix: {model: ['%s'], workers: [2]%s}\n"
Planned = Callable[..., Plan]


@pytest.fixture
def planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machine: Callable[..., Machine]) -> Planned:
    """The plan of a study of this model in tmp_path/studies, made in tmp_path/here; `files` are there, with a load."""
    (tmp_path / "studies").mkdir()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")

    def made(model: str, *files: str, source: str = "def load(trial, ranks): ...\n", cluster: Cluster = ALONE) -> Plan:
        for file in files:
            (tmp_path / file).write_text(source)
        path = tmp_path / "studies" / "mine.yaml"
        path.write_text(STUDY % (model, ", hosts: [2]" if cluster.hosts else ""))
        return plan.make(study.load(path), machine(), cluster=cluster)

    return made


@pytest.mark.parametrize("file", ["studies/my_model.py", "here/my_model.py"])
def test_a_file_beside_the_study_or_in_the_current_folder_is_one(planned: Planned, tmp_path: Path, file: str) -> None:
    made = planned("my_model.py:load", file)
    (trial,) = (each.trial for each in made.configurations)
    assert not made.configurations[0].unsupported and trial.model == "my_model.py:load"
    assert trial.configuration.startswith("torch_ddp-my_model.py-load-b32-"), "in any folder"
    command = launchers.command(trial, cluster=made.cluster)
    folders = [str(tmp_path / name) for name in ("studies", "here")]
    assert command.env[FOLDERS].split(os.pathsep) == folders and "my_model.py:load" in command.argv
    assert {gate.trial.model for gate in made.gates} == {"my_model.py:load"}
    assert FOLDERS not in launchers.command(trial, cluster=planned("resnet8").cluster).env


@pytest.mark.parametrize(
    ("model", "source", "said"),
    [
        ("absent.py:load", "", "there is no file absent.py in {0}/studies or in {0}/here"),
        ("mymodel.py:load", "", "; did you mean 'my_model.py'?"),
        ("my_model.py:lod", "def load(trial, ranks): ...\n", "has no function 'lod'; did you mean 'load'?"),
        ("my_model.py:load", "\ndef load(:\n", "{0}/studies/my_model.py:2: invalid syntax"),
        (
            "my_model.py:load",
            "\ndef load(trial: Trial, ranks):\n    return Workload([nn for _ in ranks])\n",
            "{0}/studies/my_model.py:2: neither defined nor imported: Trial, Workload, nn",
        ),
        ("my_model.py", "", "a model of your own is a file and a function in it, like my_model.py:load"),
    ],
)
def test_what_is_wrong_with_it_is_said_with_the_line_of_the_study(planned, tmp_path, model, source, said):
    with pytest.raises(StudyError) as refused:
        planned(model, "studies/my_model.py", source=source)
    (problem,) = refused.value.problems
    assert problem.startswith(f"{tmp_path}/studies/mine.yaml:4: ") and said.format(tmp_path) in problem


@pytest.mark.parametrize(
    "source",
    [
        "from elsewhere import load\n",
        "from elsewhere import *\ndef load(trial, ranks): return Workload()\n",
        "from __future__ import annotations\ndef load(trial: Trial, ranks: Ranks) -> Workload: ...\n",
        "def begin():\n    global seen\n    seen = 1\ndef load(trial, ranks): return later(seen)\n"
        "def later(x): return x\n",
        "class One:\n    size = 2\n    both = [size, *range(size)]\n"
        "    def of(self): return super(), __class__, __file__\n"
        "def load(trial, ranks): return {a: b for a, *b in [One().of()]}\n",
    ],
    ids=["imported", "all imported", "annotations", "global", "class"],
)
def test_a_function_is_one_however_it_and_its_names_came_about(planned: Planned, source: str) -> None:
    assert planned("my_model.py:load", "studies/my_model.py", source=source).configurations


def test_the_file_of_the_guide_runs_as_it_is(planned: Planned, monkeypatch: pytest.MonkeyPatch) -> None:
    """And with the chain that the guide adds to it, which computes the same loss; and with the samples of a Dataset."""
    monkeypatch.setattr(sys, "path", [*sys.path])  # to which the folder of a model is added
    whole, from_dataset, chain = BLOCKS
    made = re.search(r"    inputs = .*\n    targets = .*\n", whole)
    assert made
    with_dataset = whole.replace(made[0], from_dataset).replace(
        "SAMPLES = 4_096",
        "dataset = [(torch.full((8,), n * 1.0), [n / 16]) for n in range(16)]\nSAMPLES = 16",
    )
    with_chain = whole.replace("model=model,", "model=model,\n        chain=chain,") + chain
    sources = {"my_model.py": whole, "with_dataset.py": with_dataset, "with_chain.py": with_chain}
    for name, source in sources.items():
        assert planned(f"{name}:load", f"here/{name}", source=source).gates
        workload = workloads.load(Trial(model=f"{name}:load", batch_per_worker=4), Ranks())
        batch = next(workload.batches)
        loss = workload.loss(workload.model, batch)
        loss.backward()
        assert all(weights.grad is not None for weights in workload.model.parameters())
    assert workload.chain is not None and workload.chain(workload.model)(batch).equal(loss)


def test_it_goes_to_other_hosts_which_must_have_the_file(planned: Planned, tmp_path: Path) -> None:
    cluster = Cluster((Host("h1", 1), Host("h2", 1)))
    made = planned("my_model.py:load", "studies/my_model.py", cluster=cluster)
    (trial,) = (each.trial for each in made.configurations)
    argv = launchers.command(trial, cluster=made.cluster).argv
    assert argv[argv.index(FOLDERS) - 1] == "-x"
    needs = inspection.requirements(made, [trial])
    assert needs.models == (str(tmp_path / "studies" / "my_model.py"),)


def test_an_edit_after_trials_have_finished_is_said_with_both_digests(planned: Planned, tmp_path: Path) -> None:
    """Of the file, and of a file that it imports; nothing is said of trials that --retry runs again."""
    folder = tmp_path / "studies"
    (folder / "beside.py").write_text("import os, other\n")
    (folder / "other.py").write_text("import beside\n")
    made = planned("my_model.py:load", "studies/my_model.py", source="from beside import *\ndef load(t, r): ...\n")
    job, asked = sweep.Run(made, tmp_path / "results"), (*made.gates, *made.configurations)
    for each in asked:
        ended = results.summarize(replace(job.begun(each), status="failed"))
        job.records[ended.id] = replace(ended, status="ok", total_seconds=9.0, samples_per_second=9.0)
    assert not list(job.edited_models())
    seen = {ended.model_code}
    for file in ("my_model.py", "other.py"):
        (folder / file).write_text((folder / file).read_text() + "# edited\n")
        seen.add(now := models.code_of("my_model.py:load", [str(folder)]))
        (said,) = job.edited_models()
        assert f"after {len(asked)} of its finished trials" in said and f"{ended.model_code} then, {now} now" in said
        assert "--retry ok --where model=my_model.py:load" in said
        shown = io.StringIO()
        dry_run.show(Console(file=shown, width=1_000), job, asked)
        assert said in shown.getvalue()
    assert len(seen) == 3 and {len(code) for code in seen} == {models.CODE_DIGITS}
    job.retry = frozenset({"ok"})
    assert not list(job.edited_models())


def test_the_code_of_an_installed_model_is_that_of_its_module_or_package(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "planted_module.py").write_text("1\n")
    (tmp_path / "planted_package").mkdir()
    (tmp_path / "planted_package" / "__init__.py").write_text("1\n")
    (tmp_path / "planted_package" / "load.py").write_text("2\n")
    for place in ("planted_module:load", "planted_package.load:load"):
        monkeypatch.setitem(cast("dict[str, Model]", MODELS), place, replace(MODELS["own.py:load"], workload=place))
    assert len({models.code_of(name, ()) for name in ("planted_module:load", "planted_package.load:load")} - {""}) == 2
    assert {models.code_of(name, ()) for name in ("resnet8", "none", "timm:vit_tiny", "script:t.py")} == {""}


def test_init_takes_one(planned: Planned, capsys: pytest.CaptureFixture[str]) -> None:
    planned("my_model.py:load", "here/my_model.py")
    assert cli.main(["init", "first.yaml", "--model", "my_model.py:load"]) == 0
    assert "configurations of my_model.py:load on" in capsys.readouterr().out
    assert cli.main(["run", "first.yaml", "--dry-run"]) == 0
    assert "model my_model.py:load" in " ".join(capsys.readouterr().out.split())


def test_only_a_file_and_a_function_is_such_a_name() -> None:
    for name in ("my_model.py:", ":load", "a b.py:load", "script:a.py:load", "my_model.txt:load", "my_model.py:1"):
        with pytest.raises(KeyError):
            MODELS[name]
