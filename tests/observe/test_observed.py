"""How a process comes to be observed: at its start, whatever starts it, and at no cost where nothing trains."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from observe import scripts
from scaling_study import observe

BIN = Path(sys.executable).parent


def start(argv: list[Any], env: dict[str, str], cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        list(map(str, argv)), env=env, cwd=cwd, capture_output=True, text=True, timeout=300, check=False
    )


def clean(**more: str) -> dict[str, str]:
    """An environment from which scaling_study cannot be imported, as on other people's machines."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return {**kept, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "OMP_NUM_THREADS": "1", **more}


def with_observer(env: dict[str, str], folder: Path, steps: int | None = None) -> dict[str, str]:
    return {**env, **observe.environment(env, folder, steps)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "records"
    made.mkdir()
    return made


WITHOUT_THE_LIBRARY = (
    "import sys; sys.meta_path[:] = [finder for finder in sys.meta_path if 'editable' not in str(finder)]"
)


@pytest.fixture
def elsewhere(tmp_path: Path) -> dict[str, str]:
    """The observer alone, copied to where nothing else of the library is, and where that cannot be imported."""
    shutil.copytree(Path(observe.SITE).parent, tmp_path / "copied" / "observe")
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "sitecustomize.py").write_text(WITHOUT_THE_LIBRARY)
    return clean(PYTHONPATH=f"{tmp_path / 'copied' / 'observe' / 'site'}{os.pathsep}{tmp_path / 'theirs'}")


def test_a_process_that_never_imports_torch_loads_none_of_it_and_leaves_no_record(folder: Path, tmp_path: Path) -> None:
    program = "import sys, json; print([name for name in sys.modules if name.startswith(('scaling_study', 'torch'))])"
    done = start([sys.executable, "-c", program], with_observer(clean(), folder), tmp_path)
    assert (done.stdout, done.stderr) == ("[]\n", "")
    assert observe.read(folder) == []


def test_another_sitecustomize_runs_as_ever_and_pythonpath_is_extended(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import os\nos.environ['THEIRS'] = __file__\n")
    env = with_observer(clean(PYTHONPATH=str(tmp_path)), folder)
    done = start(
        [sys.executable, "-c", "import os, sitecustomize as s; print(os.environ['THEIRS'], s.__file__)"], env, folder
    )
    assert done.stdout.split() == [str(tmp_path / "sitecustomize.py")] * 2
    assert env["PYTHONPATH"] == f"{observe.SITE}{os.pathsep}{tmp_path}"


STUB = """
__version__ = "1.13.1"
class cuda:
    is_available = is_initialized = staticmethod(lambda: False)
class distributed:
    is_available = is_initialized = staticmethod(lambda: False)
"""


def test_another_sitecustomize_that_raises_says_so_as_ever_and_the_observer_stays(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("raise ValueError('theirs is broken')\n")
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(STUB)
    env, words = clean(PYTHONPATH=str(tmp_path)), [sys.executable, "-c", "import torch; print('goes on')"]
    alone, done = start(words, env, folder), start(words, with_observer(env, folder), folder)
    assert (done.returncode, done.stdout, done.stderr) == (alone.returncode, alone.stdout, alone.stderr)
    assert "theirs is broken" in done.stderr and done.stdout == "goes on\n"
    assert "is older than" in observe.read(folder)[0][-1]["why"], "it was there when torch was imported"


def test_torch_that_is_too_old_is_one_clear_line(folder: Path, tmp_path: Path) -> None:
    """And who only looks whether there is a torch (find_spec) does not end the waiting for it."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(STUB)
    look = "from importlib import util; assert util.find_spec('torch'); import torch; print(torch.__spec__.loader)"
    for steps in (None, 5):
        done = start(
            [sys.executable, "-c", look], with_observer(clean(PYTHONPATH=str(tmp_path)), folder, steps), tmp_path
        )
        assert "SourceFileLoader" in done.stdout and done.stderr == "", "as without the observer"
        assert (folder / observe.LOST).exists() == (steps is not None), "for a driver that would wait for five steps"
    for _, said in observe.read(folder):
        assert said == {"kind": "not observed", "why": "RuntimeError: torch 1.13.1 is older than 2.1"}


def test_a_driver_that_waits_for_a_process_hears_that_it_is_not_observed(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(STUB)
    with socket.create_server(("127.0.0.1", 0)) as server:
        asked = tmp_path / "request.json"
        asked.write_text(json.dumps({"address": server.getsockname(), "key": "the key"}))
        env = observe.environment(clean(PYTHONPATH=str(tmp_path)), folder, driver=asked)
        done = start([sys.executable, "-c", "import torch; print('goes on')"], env, tmp_path)
        assert done.stdout == "goes on\n"
        server.settimeout(10)
        told = json.loads(Connection(server.accept()[0].detach()).recv_bytes())
    assert (told["key"], told["error"]) == ("the key", "not observed: RuntimeError: torch 1.13.1 is older than 2.1")


@pytest.mark.slow
def test_a_script_of_an_environment_without_scaling_study_is_observed_and_may_say_its_steps(
    folder: Path, tmp_path: Path, elsewhere: dict[str, str]
) -> None:
    (tmp_path / "train.py").write_text(scripts.HEAD + scripts.EXPLICIT)
    told = {observe.FOLDER: str(folder), observe.STEPS: "4"}
    done = start([sys.executable, "train.py"], {**elsewhere, **told}, tmp_path)
    assert done.returncode == 0, done.stderr
    [[_, *steps, end]] = observe.read(folder)
    assert (len(steps), end["samples_per_step"]) == (4, 16)


ENDINGS = """
import multiprocessing, signal
def train(end):
    for x, y in [batch for _ in range(2) for batch in DataLoader(data, 16)]:
        step(x, y)
    end()
killed = lambda: os.kill(os.getpid(), signal.SIGKILL)
process = multiprocessing.get_context("fork").Process(target=train, args=(killed,))
process.start()
process.join()
train(lambda: 1 / 0)
"""


@pytest.mark.slow
def test_a_crash_is_named_and_what_is_killed_keeps_its_steps(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(scripts.HEAD + ENDINGS)
    done = start([sys.executable, "train.py"], with_observer(clean(), folder), tmp_path)
    assert done.returncode == 1 and done.stderr.count("ZeroDivisionError") == 1
    crashed, killed = sorted(observe.read(folder), key=lambda lines: lines[-1]["kind"])
    assert (crashed[-1]["kind"], crashed[-1]["why"]) == ("end", "ZeroDivisionError: division by zero")
    assert crashed[-1]["steps"] == 12
    assert killed[-1]["kind"] == "step" and killed[-1]["step"] >= 8


SPAWN = """
import torch.multiprocessing as mp
def train(rank):
    import torch.distributed as dist
    dist.init_process_group("gloo", init_method="file://STORE", rank=rank, world_size=2)
    exec(TEXT, {})
if __name__ == "__main__":
    mp.spawn(train, nprocs=2)
"""
TORCHRUN = ["torchrun", "--standalone", "--nproc-per-node", "2"]
MPIRUN = ["mpirun", "--allow-run-as-root", "--bind-to", "none", "--oversubscribe", "-np", "2", "python"]
MODEL = {"allreduce": 712}  # bytes of the model's gradients


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "launcher", "script", "sent"),
    [
        ("spawn", ["python"], "", MODEL),
        ("torchrun", TORCHRUN, scripts.HEAD + scripts.DDP, MODEL),
        ("horovodrun", ["horovodrun", "-np", "2", "--gloo", "python"], scripts.HEAD + scripts.HOROVOD, MODEL),
        ("mpirun", MPIRUN, scripts.HEAD + scripts.AVERAGED_BY_HAND, None),
        ("lightning", ["python"], scripts.HEAD + scripts.LIGHTNING, {}),
    ],
    ids=lambda value: value if isinstance(value, str) and value.isalpha() else "",
)
def test_a_launcher_ends_with_0_after_the_step_that_was_asked_for(
    name: str, launcher: list[str], script: str, sent: dict[str, int] | None, folder: Path, tmp_path: Path
) -> None:
    if name == "spawn":
        script = SPAWN.replace("STORE", str(tmp_path / "store")).replace("TEXT", repr(scripts.HEAD + scripts.DDP))
    (tmp_path / "train.py").write_text(script)
    done = start([*launcher, "train.py"], with_observer(clean(), folder, steps=3), tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    processes, ranks = observe.read(folder), 1 if name == "lightning" else 2
    assert [lines[-1]["why"] for lines in processes] == ["ended by scaling-study after 3 steps"] * ranks
    assert [lines[0]["rank"] for lines in processes] == list(range(ranks))
    assert [(lines[-1]["samples_per_step"], len(lines)) for lines in processes] == [(16, 5)] * ranks
    for lines in processes:
        inside = lines[-1]["inside"]
        assert (inside["flops"], inside["communication_bytes"]) == (11264, sent)
        assert (sent is None) == ("MPI" in inside["unknown"].get("communication_bytes", ""))
