"""Scripts that train without torch, or in processes of another library's, and the two examples: JAX and Ray Train.

Neither library is installed with this project: their tests are skipped without them.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from observe.test_observed import MPIRUN, clean, elsewhere, folder, start, with_observer  # noqa: F401  fixtures
from scaling_study import observe
from scaling_study.launch import observed
from scaling_study.settings import CHECKOUT
from scaling_study.trial import Trial, Window

EXAMPLES = CHECKOUT / "examples" / "scripts"
SAYS = """
import sys, time
from scaling_study import observe
for number in range(1, 1000):
    time.sleep(0.002)
    observe.step(8, loss=1 / number)
    assert "torch" not in sys.modules
"""
JAX = """
import os
__version__ = "0.10.2"
process_index = lambda: int(os.environ["OMPI_COMM_WORLD_RANK"])
process_count = lambda: 2
default_backend = lambda: "cpu"
"""


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_script_without_torch_says_its_steps_and_what_is_not_seen_of_them_is_empty(
    ranks: int,
    folder: Path,  # noqa: F811
    tmp_path: Path,
    elsewhere: dict[str, str],  # noqa: F811
) -> None:
    (tmp_path / "train.py").write_text(SAYS if ranks == 1 else f"import jax{SAYS}")
    (tmp_path / "jax.py").write_text(JAX)
    told = {observe.FOLDER: str(folder), observe.STEPS: "6"}
    for rank in range(ranks):
        done = start([sys.executable, "train.py"], elsewhere | told | {"OMPI_COMM_WORLD_RANK": str(rank)}, tmp_path)
        assert done.returncode == 0, done.stderr
    processes = observe.read(folder)
    for rank, (about, *steps, end) in enumerate(processes):
        assert (about["rank"], about["world"]) == ((None, None) if ranks == 1 else (rank, 2))
        assert (len(steps), end["samples_per_step"], end["samples_unknown"]) == (6, 8, "")
        theirs = [tmp_path / name for name in ("theirs/sitecustomize.py", "train.py", "jax.py")[: 1 + ranks]]
        assert about["code"] == observe.digests(map(str, theirs)), "and no library, nor the observer beside them"
        assert [step["loss"] for step in steps] == [1 / number for number in range(1, 7)]
        assert all(step["seconds"] > 0.002 for step in steps), "the first began when the observer was imported"
        assert end["inside"] == {"unknown": dict.fromkeys(
            ("flops", "forward_flops", "communication_bytes"), "the script trains without torch")}  # fmt: skip
    trial = Trial(framework="command", command="x", workers=ranks, batch_per_worker=8, window=Window(2, 2, 0.0))
    for report in observed.reports(trial, processes, ()):
        assert report.phases is None and report.forward_flops_per_sample is None
        assert report.versions == ({} if ranks == 1 else {"jax": "0.10.2"})
        assert (report.loss_first, report.samples_per_step, report.device) == (1.0, 8, "cpu")


def test_a_step_of_a_script_that_is_not_observed_loads_nothing(tmp_path: Path) -> None:
    look = "import sys; print('scaling_study.observe.hooks' in sys.modules)"
    said = f"from scaling_study import observe; observe.step(4); {look}"
    assert start([sys.executable, "-c", said], clean(PYTHONPATH=str(CHECKOUT)), tmp_path).stdout == "False\n"


# --- JAX ---


@pytest.fixture
def jax() -> Any:
    return pytest.importorskip("jax", reason="jax is not installed")


@pytest.mark.slow
def test_a_llama_in_jax_follows_torch_in_fp64(jax: Any) -> None:
    """Of any weight after ten steps, in shares of the largest of its matrix."""
    import torch

    from scaling_study.study.meshes import SHAPES
    from scaling_study.workloads.llama import Llama

    spec = importlib.util.spec_from_file_location("jax_llama", EXAMPLES / "jax_llama.py")
    assert spec and spec.loader
    example: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    torch.manual_seed(0)
    model = Llama(SHAPES["llama_tiny"]).double()
    named = {
        re.sub("(attention|feed_forward)[.]|[.]weight$", "", name): weight for name, weight in model.named_parameters()
    }
    draw, optimizer = np.random.default_rng(0), torch.optim.SGD(model.parameters(), lr=0.5)
    with jax.enable_x64(True):
        weights = {name: jax.numpy.asarray(weight.detach().numpy()) for name, weight in named.items()}
        assert {name: value.shape for name, value in weights.items()} == example.SHAPES
        for _ in range(10):
            batch = draw.integers(0, example.VOCABULARY, (4, example.LENGTH + 1))
            ours, weights = jax.jit(example.step)(weights, batch)
            tokens = torch.from_numpy(batch)
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
            loss.backward()
            optimizer.step()
            assert abs(float(ours) - loss.item()) < 1e-14 * loss.item()
    theirs = {name: weight.detach().numpy() for name, weight in named.items()}
    off = {name: np.abs(np.asarray(weights[name]) - theirs[name]).max() / np.abs(theirs[name]).max() for name in theirs}
    print(f"JAX against torch, largest difference after ten steps: {max(off.values()):.1e}")
    assert max(off.values()) < 1e-14


@pytest.mark.slow
def test_the_example_in_jax_trains_the_same_in_two_processes_and_is_observed(
    jax: Any,
    folder: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    env = clean(JAX_ENABLE_X64="1", PYTHONPATH=str(CHECKOUT))
    script = [EXAMPLES / "jax_llama.py", "--steps", "20"]
    one = start([sys.executable, *script, "--batch-size", "8"], env, tmp_path)
    two = start([*MPIRUN[:-1], sys.executable, *script, "--batch-size", "4", "--coordinator", "127.0.0.1:29417"],
                with_observer(env, folder), tmp_path)  # fmt: skip
    assert (one.returncode, two.returncode) == (0, 0), two.stderr[-3000:]
    losses = [[float(line.split()[-1]) for line in done.stdout.splitlines() if "loss" in line] for done in (one, two)]
    assert len(losses[0]) == 2 and losses[1] == pytest.approx(losses[0], rel=1e-14)
    ranks = observe.read(folder)
    assert [(about["rank"], about["world"], about["by"]) for about, *_ in ranks] == [(0, 2, "jax"), (1, 2, "jax")]
    assert [(end["steps"], end["samples_per_step"]) for *_, end in ranks] == [(20, 4)] * 2


# --- Ray Train ---


@pytest.mark.slow
@pytest.mark.long
def test_workers_of_ray_train_are_observed(folder: Path, tmp_path: Path) -> None:  # noqa: F811
    pytest.importorskip("ray", reason="ray is not installed")
    words = ["--workers", "2", "--batch-size", "4", "--out", tmp_path]
    done = start([sys.executable, EXAMPLES / "ray_train.py", *words], with_observer(clean(), folder, 10), tmp_path)
    ranks = observe.read(folder)  # Ray takes the end that was asked for as an error: its exit code is 1
    assert [(about["rank"], about["world"]) for about, *_ in ranks] == [(0, 2), (1, 2)], done.stderr[-3000:]
    assert [end["why"] for *_, end in ranks] == ["ended by scaling-study after 10 steps"] * 2
    assert [end["samples_per_step"] for *_, end in ranks] == [4, 4]
    assert not os.path.exists(os.path.expanduser("~/.ray/auth_token"))
