"""Nothing here runs what a file or a value says: no shell is given one, nothing is unpickled, YAML holds data only.

Shown by running every launcher with values made for a shell, and read from every source of the repository. Here too:
every threat that docs/reliability.md lists has a test that exists.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

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
    env = {**os.environ, **attempts.launch_environment(command), "RANKS": str(tmp_path / "ranks")}
    done = subprocess.run(command.argv, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False)
    said = [json.loads(path.read_text()) for path in (tmp_path / "ranks").iterdir()]
    assert len(said) == trial.workers, done.stderr[-2000:]
    meant = [*trial.to_argv(), "--record", str(folder)]
    assert all([word for word in argv if not word.startswith("--local")] == meant for argv in said)
    left = {path.name for path in tmp_path.iterdir() if not path.name.startswith(".coverage")}
    assert left == {"ranks", script.parent.name}, "a shell has touched something"


# --- sources ---

STARTS_SHELLS = {"system", "popen", "getoutput", "getstatusoutput"}
UNSAFE_YAML = {"load", "load_all", "unsafe_load", "unsafe_load_all", "full_load", "full_load_all", "Loader",
               "FullLoader", "UnsafeLoader", "CLoader", "CFullLoader", "CUnsafeLoader"}  # fmt: skip
UNPICKLES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "marshal", "shelve", "joblib", "jsonpickle"}


def unsafe(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, what) wherever a source could run what a file or a value says."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = {alias.name for alias in node.names} if isinstance(node, ast.Import) else {node.module or ""}
            if found := {name.split(".")[0] for name in names} & UNPICKLES:
                yield node.lineno, f"imports {found.pop()}"
        elif isinstance(node, ast.Attribute):
            of = ast.unparse(node.value)
            if of in ("os", "subprocess", "commands") and node.attr in STARTS_SHELLS:
                yield node.lineno, f"{of}.{node.attr}"
            if of == "yaml" and node.attr in UNSAFE_YAML:
                yield node.lineno, f"yaml.{node.attr}"
            if node.attr == "read_pickle":
                yield node.lineno, "read_pickle"
        elif isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            given = {word.arg: ast.unparse(word.value) for word in node.keywords}
            if given.get("shell", "False") != "False":
                yield node.lineno, "shell=True"
            if given.get("allow_pickle", "False") != "False":
                yield node.lineno, "allow_pickle"
            if name in ("eval", "exec", "compile", "__import__", "builtins.eval", "builtins.exec"):
                yield node.lineno, name
            if name == "torch.load" and given.get("weights_only") != "True":
                yield node.lineno, "torch.load without weights_only=True"
            if node.args and isinstance(first := node.args[0], ast.List | ast.Tuple):
                words = [ast.unparse(word).strip("'") for word in first.elts[:2]]
                if words in (["sh", "-c"], ["bash", "-c"]) and not isinstance(first.elts[2], ast.Constant):
                    yield node.lineno, "sh -c"


ALLOWED = {  # what is pasted into a shell is tried in one; a loop of a shell is what the driver is measured against
    ("tests/test_cli.py", "shell=True"),
    ("tests/test_unsafe_code.py", "sh -c"),
    ("benchmarks/driver_overhead.py", "sh -c"),
    ("tests/interpreter.py", "exec"),  # what `python -c` of a test would run, in a fork
    ("tests/interpreter.py", "compile"),
    ("tests/workloads/test_images.py", "imports pickle"),  # CIFAR-10's own names, as its archive has them
}


def sources() -> list[Path]:
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py"]
    said = subprocess.run(listed, cwd=CHECKOUT, capture_output=True, text=True, check=False)
    names = said.stdout.splitlines() or [str(path.relative_to(CHECKOUT)) for path in CHECKOUT.rglob("*.py")]
    ours = [name for name in names if not {".venv", ".cache", "build"} & set(Path(name).parts)]
    return [CHECKOUT / name for name in ours if (CHECKOUT / name).exists()]


@pytest.mark.slow
def test_nothing_in_the_repository_runs_what_a_file_says() -> None:
    assert len(sources()) > 150
    found = {
        (str(path.relative_to(CHECKOUT)), what): line
        for path in sources()
        for line, what in unsafe(ast.parse(path.read_text(encoding="utf-8")))
    }
    assert {place: line for place, line in found.items() if place not in ALLOWED} == {}


@pytest.mark.parametrize(
    "text",
    ["import pickle", "from pickle import loads", "import os\nos.system('x')", "subprocess.run('x', shell=True)",
     "subprocess.run('x', shell=SHELL)", "yaml.load(x)", "yaml.load(x, Loader=yaml.Loader)", "yaml.unsafe_load(x)",
     "eval('1')", "exec(x)", "__import__('os')", "torch.load(x)", "torch.load(x, weights_only=False)",
     "subprocess.getoutput(x)", "np.load(x, allow_pickle=True)", "subprocess.run(['sh', '-c', x])",
     "pd.read_pickle(x)"],
)  # fmt: skip
def test_each_unsafe_habit_would_be_found(text: str) -> None:
    assert list(unsafe(ast.parse(text)))


# --- the list of threats ---


def test_the_list_of_threats_names_tests_that_exist() -> None:
    page = (CHECKOUT / "docs" / "reliability.md").read_text(encoding="utf-8")
    section = page.split("## Hostile input")[1].split("\n## ")[0]
    rows = [line.strip("|").split(" | ") for line in section.splitlines() if line.startswith("|")][2:]
    assert len(rows) > 15 and all(len(row) == 3 for row in rows)
    defined = {name for path in sources() for name in re.findall(r"def (test_\w+)", path.read_text(encoding="utf-8"))}
    for threat, _, named in rows:
        tests = re.findall(r"`(test_\w+)`", named)
        assert tests, f"no test stands for: {threat}"
        assert set(tests) <= defined, set(tests) - defined
