"""One command line and the doors beside it: each starts the same function, explains itself, and refuses in one line."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from scaling_study import cli, datasets
from scaling_study.settings import CHECKOUT
from scaling_study.study import combinations, plan

STUDY = """
study: tiny
sweeps:
  - {framework: single, data: synthetic, matrix: {model: [resnet8], batch_per_worker: [4, 8]}}
"""
# A command of scaling-study -> the door that leads to it, with the words that it begins with there.
DOORS: dict[tuple[str, ...], tuple[Callable[[Sequence[str]], int], list[str]]] = {
    ("run",): (cli.run_sweep, []),
    ("parity",): (cli.parity, []),
    ("tables",): (cli.analysis, []),
    **{(name,): (cli.analysis, [name]) for name in ("report", "compare", "predict", "export", "references")},
}
COMMANDS = [*DOORS, *((name,) for name in cli.ENTRIES if (name,) not in DOORS)]
COMMANDS += [("slurm", name) for name in ("submit", "status", "collect")]


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.yaml").write_text(STUDY)
    return tmp_path / "tiny.yaml"


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_explains_itself(command, capsys):
    assert cli.main([*command, "--help"]) == 0
    shown = capsys.readouterr()
    assert f"scaling-study {' '.join(command)}" in shown.out and not shown.err
    assert not re.search(r"<(bool|int|str|float|file|path|dir)", shown.out), "types of Python"
    assert len(shown.out.splitlines()) < 50
    assert command == ("slurm",) or f"Example: scaling-study {' '.join(command)}" in " ".join(shown.out.split())


def test_the_list_of_commands_fits_a_screen(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert cli.main(["--help"]) == cli.main(["help"]) == 0
    shown = capsys.readouterr().out
    first, again = shown[: len(shown) // 2], shown[len(shown) // 2 :]
    assert first == again
    lines = first.splitlines()
    assert len(lines) <= 24 and max(map(len, lines)) < 80 and lines[-1].startswith("Example: scaling-study ")
    listed = [name for line in lines if line[:2] == "  " for name in line[2:].split("  ")[0].split(", ")]
    assert sorted(listed) == sorted(name for name, entry in cli.ENTRIES.items() if not entry.hidden)
    assert "maps" not in listed and "maps" in cli.ENTRIES, "it works, and is for those who know it"


@pytest.mark.parametrize("command", DOORS, ids=" ".join)
def test_a_door_shows_the_options_of_its_command(command, capsys):
    door, words = DOORS[command]
    assert cli.main([*command, "--help"]) == door([*(words or command if door is cli.analysis else words), "--help"])
    named, alone = capsys.readouterr().out.split("Usage:")[1:]
    assert named.split("\n", 1)[1].split() == alone.split("\n", 1)[1].split(), "but for the name of the program"


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_an_unknown_option_is_one_line_and_exit_code_2(command, capsys):
    called = [(cli.main, [*command, "--colour"])]
    if command in DOORS:
        door, words = DOORS[command]
        called.append((door, [*words, "--colour"]))
    for door, words in called:
        assert door(words) == 2
        shown = capsys.readouterr()
        assert shown.err.startswith("error: No such option: --colour") and shown.err.count("\n") == 1 and not shown.out


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ([], "which study?"),
        (["run"], "which study?"),
        (["parity"], "which study?"),
        (["slurm"], "Missing command."),
        (["slurm", "submitt"], "no command 'submitt'; did you mean 'submit'?"),
        (["reprot", "results"], "no command 'reprot'; did you mean 'report'?"),
        (["frobnicate"], "no command 'frobnicate', and no file or folder has this name; --help lists the commands"),
        (["nothere.yaml"], "nothere.yaml: no such file"),
        (["report"], "Missing argument 'RESULTS'."),
        (["predict", "a"], "Missing option '--workers'."),
        (["run", "tiny.yaml", "--max-trials", "-1"], "Invalid value for '--max-trials': Input should be"),
        (["tiny.yaml", "--status", "--dry-run"], "--dry-run and --profile do not go with --slurm"),
        (["tiny.yaml", "--slurm", "nodes=1", "--per-trial", "--reset"], "--reset does not go with --per-trial"),
        (["tiny.yaml", "--detach"], "--detach is gone: start the sweep with nohup, in tmux,"),
        (["tiny.yaml", "--where", "colour=red"], "--where colour=red: expected key=value with a trial key"),
        (["tiny.yaml", "--where", "batch_per_worker=5"], "--where batch_per_worker=5 matches no trial"),
        (["tiny.yaml", "--profile", "resnet999"], "--profile resnet999: no trial of this study; there are "),
        (["tiny.yaml", "--retry", "broken"], "--retry broken: a status is one of ok, oom"),
        (["slurm", "status", "nothere.yaml"], "nothere.yaml: no such file"),
        (["parity", "nothere.yaml"], "nothere.yaml: no such file"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_is_wrong_with_a_command_line_is_one_line(study, capsys, words, problem):
    assert cli.main(words) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith(f"error: {problem}") and shown.err.count("\n") == 1 and not shown.out


def test_every_door_to_a_plan_shows_the_same_plan(study, capsys):
    plans = []
    for door, words in ((cli.run_sweep, []), (cli.main, ["run"]), (cli.main, [])):
        assert door([*words, "tiny.yaml", "--dry-run", "--json"]) == 0
        plans.append(json.loads(capsys.readouterr().out))
    assert plans[0] == plans[1] == plans[2] and len(plans[0]["trials"]) == 6


def test_slurm_has_a_command_for_each_option_of_a_sweep(study, capsys):
    assert cli.main(["slurm", "status", "tiny.yaml"]) == cli.run_sweep(["tiny.yaml", "--status"])
    by_command, by_option = capsys.readouterr().out.splitlines()
    assert by_command == by_option == "No Slurm job was submitted into results/tiny."
    scripts = []
    asked = ["--where", "batch_per_worker=4"]
    for door, words in ((cli.main, ["slurm", "submit", "tiny.yaml", *asked, "--sbatch", "time=1:00:00", "--print"]),
                        (cli.run_sweep, ["tiny.yaml", "--slurm=time=1:00:00", *asked, "--slurm-print"])):  # fmt: skip
        assert door(words) == 0
        scripts.append([line for line in capsys.readouterr().out.splitlines() if "run_sweep.py" in line])
    assert scripts[0] == scripts[1]
    script = shlex.quote(str(CHECKOUT / "run_sweep.py"))  # a checkout may lie in a path with spaces
    assert f"{script} tiny.yaml --where batch_per_worker=4 &" in scripts[0][-1]


@pytest.mark.slow
def test_what_runs_no_analysis_loads_none(tmp_path):
    """pandas and matplotlib take longer to load than a plan takes to make. A plan of results says more."""
    program = (
        "import sys; from scaling_study import cli\n"
        "codes = [cli.run_sweep(['--help']), cli.run_sweep(['sweeps.yaml', '--dry-run', '--results', sys.argv[1]]),\n"
        "         cli.main(['--help']), cli.parity(['--help']), cli.analysis(['predict', '--help'])]\n"
        "heavy = {'pandas', 'matplotlib', 'scipy', 'seaborn', 'torch'} & set(sys.modules)\n"
        "print(codes, sorted(heavy), file=sys.stderr)\n"
    )
    argv = [sys.executable, "-c", program, str(tmp_path)]
    done = subprocess.run(argv, cwd=CHECKOUT, capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1] == "[0, 0, 0, 0, 0] []"


TWO_SWEEPS = """
study: tiny
baseline: {framework: single}
sweeps:
  - {framework: single, matrix: {model: [resnet8], batch_per_worker: [4, 8]}}
  - {framework: single, model: resnet8, data: synthetic}
"""


@pytest.mark.parametrize("words", [["--dry-run"], ["--where", "batch_per_worker=9"]], ids=["dry run", "sweep"])
def test_a_command_makes_its_plan_once(tmp_path, monkeypatch, capsys, words):
    calls: Counter[str] = Counter()

    def counted(owner: Any, name: str) -> None:
        real = getattr(owner, name)

        def call(*arguments: Any, **named: Any) -> Any:
            calls[name] += 1
            return real(*arguments, **named)

        monkeypatch.setattr(owner, name, call)

    counted(combinations, "combinations")  # once a sweep of the study
    counted(plan, "draft")
    counted(plan, "_gates")
    (tmp_path / "tiny.yaml").write_text(TWO_SWEEPS)
    monkeypatch.setattr(datasets, "prepare", lambda names: {name: datasets.DataSource(name, "here") for name in names})
    cli.run_sweep([str(tmp_path / "tiny.yaml"), *words])
    capsys.readouterr()
    assert calls == {"combinations": 2, "draft": 1, "_gates": 1}


def test_nothing_is_downloaded_for_a_study_whose_baseline_matches_nothing(tmp_path, monkeypatch, capsys):
    (tmp_path / "tiny.yaml").write_text(
        TWO_SWEEPS.replace("{framework: single}\nsweeps", "{framework: horovod}\nsweeps")
    )
    monkeypatch.setattr(datasets, "prepare", lambda names: pytest.fail("data was prepared"))
    assert cli.run_sweep([str(tmp_path / "tiny.yaml")]) == 2
    assert "baseline framework=horovod matches no trial" in capsys.readouterr().err
