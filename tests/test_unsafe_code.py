"""Nothing here runs what a file or a value says: no shell is given one, nothing is unpickled, YAML holds data only.

Shown by running every launcher with values made for a shell, and by rules of the linter. Here too:
every threat that docs/internals/reliability.md lists names a test.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import forked
import pytest

from scaling_study.frameworks import FRAMEWORKS
from scaling_study.launch import attempts, launchers
from scaling_study.settings import CHECKOUT
from scaling_study.trial import Trial

SHELL_WORDS = ["a b", "$(touch pwned)", "`touch pwned`", "; touch pwned", "& touch pwned", "| touch pwned", "> pwned",
               "'; touch pwned; '", '"$(touch pwned)"', "a\ntouch pwned", "\\", "*", "~", "!x", "#", "{a,b}", "é", "",
               "-n"]  # fmt: skip
LAUNCHED = [("single", "python", None), ("horovod", "horovodrun", "gloo"), ("horovod", "horovodrun", "mpi"),
            ("mpi_allreduce", "mpirun", None), ("torch_ddp", "torchrun", None),
            ("deepspeed_zero", "deepspeed", None)]  # fmt: skip
SAY = "import json, os, sys; open(f'{os.environ[\"RANKS\"]}/{os.getpid()}.json', 'w').write(json.dumps(sys.argv[1:]))"


def test_a_pasted_command_is_one_command_whatever_its_values_are(tmp_path: Path) -> None:
    """`command` and --dry-run show a line for a shell: it must come apart into the very words that were meant."""
    for word in SHELL_WORDS:
        command = launchers.Command(("printf", r"%s\0", word, f"--record={word}"), {"A_B": word})
        assert shlex.split(command.shell()) == [f"A_B={word}", *command.argv]
        line = f"{command.shell()}; printf '%s\\0' \"$A_B\""
        said = subprocess.run(["sh", "-c", line], cwd=tmp_path, capture_output=True, timeout=600, check=True).stdout
        assert said.decode().split("\0")[:2] == [word, f"--record={word}"]
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize(("framework", "launcher", "controller"), LAUNCHED)
def test_no_launcher_hands_a_value_to_a_shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, framework: str, launcher: str, controller: str | None
) -> None:
    """Two of them build a line for a shell themselves: each rank must be given the very words that were meant."""
    if launcher not in ("python", "torchrun") and not (Path(sys.executable).parent / launcher).exists():
        pytest.skip(f"{launcher} is not installed")
    script = tmp_path / FRAMEWORKS[framework].script
    script.parent.mkdir()
    script.write_text(SAY)
    (tmp_path / "ranks").mkdir()
    monkeypatch.setattr(launchers, "CHECKOUT", tmp_path)
    folder = Path(" ".join(word for word in SHELL_WORDS if "\n" not in word))
    trial = Trial(
        framework=framework, launcher=launcher, controller=controller, workers=1 if framework == "single" else 2
    )
    command = launchers.command(trial, record=folder)
    env = {**attempts.launch_environment(command), "RANKS": str(tmp_path / "ranks")}
    done = forked.launch(command.argv, env, cwd=tmp_path)  # launchers written in Python too: they import torch for long
    said = [json.loads(path.read_text()) for path in (tmp_path / "ranks").iterdir()]
    assert len(said) == trial.workers, done.stderr[-2000:]
    meant = [*trial.to_argv(), "--record", str(folder)]
    assert all([word for word in argv if not word.startswith("--local")] == meant for argv in said)
    left = {path.name for path in tmp_path.iterdir() if not path.name.startswith(".coverage")}
    assert left == {"ranks", script.parent.name}, "a shell has touched something"


def test_the_linter_refuses_what_would_run_what_a_file_says() -> None:
    """exec, eval, pickle, unsafe YAML, shells: rules of flake8-bandit. torch.load reads weights only by itself."""
    asked = tomllib.loads((CHECKOUT / "ruff.toml").read_text(encoding="utf-8"))["lint"]["select"]
    assert {"S102", "S301", "S302", "S307", "S506", "S602", "S604", "S605"} <= {*asked}


def test_every_threat_of_the_list_has_a_test() -> None:
    page = (CHECKOUT / "docs" / "internals" / "reliability.md").read_text(encoding="utf-8")
    section = page.split("## Hostile input")[1].split("\n## ")[0]
    rows = [line.strip("|").split(" | ") for line in section.splitlines() if line.startswith("|")][2:]
    assert len(rows) > 15 and all(len(row) == 3 for row in rows)
    for threat, _, named in rows:  # that these tests exist: test_documents_links.py
        assert re.findall(r"`(test_\w+)`", named), f"no test stands for: {threat}"
