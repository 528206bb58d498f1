"""README.md is short, its figures are those of the example, and its commands run."""

from __future__ import annotations

import io
import itertools
import re
import shlex
import subprocess
import textwrap
from pathlib import Path

import pytest
from rich.console import Console

from analysis import terminal
from analysis.frames import results
from analysis.show import layout
from analysis.views import batch_efficiency
from scaling_study import cli
from scaling_study.frameworks import FRAMEWORKS
from scaling_study.machine import Machine, installed
from scaling_study.settings import CHECKOUT
from scaling_study.study import plan
from scaling_study.study import study as study_files
from scaling_study.study.support import Cluster
from tests.net.examples import example, studies

README = (CHECKOUT / "README.md").read_text(encoding="utf-8")
TRAINING = (CHECKOUT / "docs/guide/train-to-a-target.md").read_text(encoding="utf-8")
HOSTS = (CHECKOUT / "docs/guide/hosts-and-slurm.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^    scaling-study (.*?)(?: +#.*)?$", README, re.MULTILINE)
PLANS = {"run": "--dry-run", "bench": "--dry-run"}  # as far as they go without minutes of measuring
RUN_BY_OTHERS = {"report": "tests/analysis/test_packed_studies.py"}

AS_SET_UP = pytest.mark.skipif(not installed("horovod"), reason="the guide's plans have Horovod")


def test_the_first_page_is_short() -> None:
    assert len(README.splitlines()) <= 110 and len(README.split()) <= 900


def test_what_it_counts_is_as_many() -> None:
    training = [one for name, one in FRAMEWORKS.items() if not one.foreign and name != "network_probe"]
    assert f"[{len(training)} frameworks]" in README
    assert f"[{len(studies())} examples](examples/results/README.md)" in README


def test_the_lines_of_the_first_command_are_those_that_it_prints() -> None:
    """Between the first and the last, which a sweep prints, those that its tables end with."""
    shown = README.partition("make sweep\n")[2].partition("![")[0]
    first, _estimate, dots, *answer, last = [line.strip() for line in shown.splitlines() if line.startswith("    ")]
    screen = io.StringIO()
    terminal.show(results.read(example("cifar10-scaling")), Console(file=screen, width=1_000))
    printed = [line.strip() for line in screen.getvalue().splitlines()]
    assert len(answer) == 4 and not {*answer} - {*printed} and printed[-1] == answer[-1]
    name = results.read(example("cifar10-scaling")).study.name
    assert first.startswith(f"{name} on ") and dots == "..." and last.endswith(f": results/{name}/")


def test_the_speed_ups_below_the_first_figure_are_those_of_the_example() -> None:
    rows = results.read(example("cifar10-scaling")).rows
    two = [one for one in rows if (one["model"], one["batch_per_worker"], one["workers"]) == ("resnet18", 64, 2)]
    said = [f"{one['speedup']:.2f} [{one['speedup_low']:.2f}, {one['speedup_high']:.2f}]" for one in two]
    assert len(said) == 2 and all(words in README for words in said)


def test_what_is_said_of_training_to_a_target_is_that_of_the_examples() -> None:
    """Of the example in which the noise scale agrees with the critical batch size, and of that in which it does not."""
    said = " ".join(TRAINING.split())
    for study, errors in (("time-to-accuracy", "(256|512)"), ("time-to-60-percent", "(512)")):
        listing = batch_efficiency.listing(results.read(example(study)))
        assert listing is not None
        table = layout.markdown(listing)
        for words in (r"critical batch size ([\d,.]+) samples (\[.*?\])", r"gradient noise scale (\S+) (\[.*?\])"):
            found = re.search(words, table)
            assert found and " ".join(found.groups()) in said
        made = re.findall(rf"torch_ddp, .*?\({errors} global\) \|.*?\| ([+-]\d+) % (\[.*?\]) \|", table)
        assert made
        for error in made:
            low, high = map(int, re.findall(r"[+-]\d+", error[2]))
            whole = f"{error[1][1:]} % {error[2]}"
            assert whole in said or (error[1][1:] in said and f"±{max(-low, high)}" in said), error
        if study == "time-to-accuracy":
            (rates,) = re.findall(r"torch_ddp, 2 workers: (\S+ times \[.*?\]) from 64 to 512, not resolved", table)
            assert rates in said


def test_every_command_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In their order, in a folder that holds what a checkout does; measurements as far as their plan."""
    for name in ("studies", "examples", "benchmarks", "data_parallel", "fsdp", "horovod_runs"):
        (tmp_path / name).symlink_to(CHECKOUT / name)
    (tmp_path / "results").mkdir()
    for name in ("A", "B"):
        (tmp_path / "results" / name).symlink_to(example("cifar10-scaling"))
    (tmp_path / "my_model.py").write_text((CHECKOUT / "examples/workload_package/sine_mlp.py").read_text())
    monkeypatch.chdir(tmp_path)
    for words in map(shlex.split, COMMANDS):
        if words[0] in RUN_BY_OTHERS:
            continue
        words += [PLANS[words[0]]] if words[0] in PLANS and "--slurm" not in words else []
        words += ["--slurm-print"] if "--slurm" in words else []
        if words[0] == "init":
            Path("study.yaml").unlink(missing_ok=True)
        code = cli.main(words)
        assert code == 0, (words, capsys.readouterr().err)
    assert {words.split()[0] for words in COMMANDS} == {"bench", "init", "run", "compare", "report"}


def test_no_command_writes_into_the_examples() -> None:
    """Beside a packed study stand pages and figures that git tracks."""
    folders = (CHECKOUT, CHECKOUT / "benchmarks", CHECKOUT / "examples", CHECKOUT / "examples/results")
    pages = [*(CHECKOUT / "docs").rglob("*.md"), *(page for folder in folders for page in folder.glob("*.md"))]
    texts = (page.read_text(encoding="utf-8") for page in pages)
    prose = (re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL) for text in texts)
    code = (block or span for text in prose for block, span in re.findall(r"^ {4}(.+)|`([^`]+)`", text, re.MULTILINE))
    doors = r"(scaling-study|python -m analysis) (report |tables |predict |pack |unpack )?examples/results/"
    commands = {" ".join(words.split()) for words in code if re.match(doors, " ".join(words.split()))}
    assert {words.split()[1] for words in commands} >= {"report", "predict", "unpack"}
    assert not [words for words in commands if " --out " not in words]


def test_make_sweep_runs_the_default_study() -> None:
    assert "make sweep\n" in README
    made = subprocess.run(["make", "-n", "sweep"], cwd=CHECKOUT, capture_output=True, text=True, check=True).stdout
    assert "run_sweep.py sweeps.yaml" in made


@AS_SET_UP
@pytest.mark.parametrize(
    "asked", ["eight_gpus.yaml dgx-h100", "two_hosts.yaml two-dgx-h100", "parallelism.yaml eight-dgx-h100"]
)
def test_the_times_of_plans_for_gpus_are_those_of_the_guide(
    asked: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study, machine = asked.split()
    words = ["run", str(CHECKOUT / "studies" / study), "--machine", machine, "--dry-run", "--results", str(tmp_path)]
    assert cli.main(words) == 0
    (time,) = re.findall(r"Estimated time: about (\d h \d\d min)", capsys.readouterr().out)
    page = (CHECKOUT / "docs/guide/gpu.md").read_text(encoding="utf-8")
    assert time in " ".join(page.split()) and f"studies/{study} --dry-run --machine {machine}" in page


def block(page: str, first: str) -> str:
    """The indented lines of a page that begin with `first`, without their indent."""
    lines = page[page.index(f"\n    {first}") + 1 :].splitlines()
    return textwrap.dedent("\n".join(itertools.takewhile(lambda line: line.startswith("    "), lines)))


def test_the_first_study_over_hosts_is_planned_whole(tmp_path: Path) -> None:
    file = tmp_path / "study.yaml"
    file.write_text(block(HOSTS, "study: over-hosts"), encoding="utf-8")
    asked = study_files.load(file)
    machine = Machine(8, "", 0, libraries=dict.fromkeys(("torch", "torchvision", "horovod"), "9"))
    made = plan.make(asked, machine, cluster=Cluster(asked.hosts))
    seen = {(each.trial.workers, each.trial.hosts): each.unsupported for each in made.configurations}
    assert seen == {(4, 1): "", (4, 2): ""}


@AS_SET_UP
def test_the_plan_for_two_hosts_with_two_gpus_begins_as_the_guide_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "studies").symlink_to(CHECKOUT / "studies")
    (tmp_path / "mine.yaml").write_text(block(HOSTS, "hosts: [h1:2, h2:2]\n"), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("COLUMNS", "300")
    (words,) = re.findall(r"^    scaling-study (run .* mine\.yaml)$", HOSTS, re.MULTILINE)
    assert cli.main(shlex.split(words)) == 0
    shown = block(HOSTS, "two_hosts: ").splitlines()
    assert [line.rstrip() for line in capsys.readouterr().out.splitlines()][: len(shown)] == shown and len(shown) > 3
