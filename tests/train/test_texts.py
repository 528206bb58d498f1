"""Language models are trained on a text as it runs, alike on any number of workers."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import forked
import pytest
from tiny_texts import TOKENS, tiny_texts

from analysis.frames.training import Training
from analysis.views.training_flaws import LOOKS
from scaling_study.frameworks import FRAMEWORKS
from scaling_study.records import store
from scaling_study.settings import CHECKOUT

pytestmark = pytest.mark.slow
LENGTH = 8
RECIPE = [
    *("--model", "transformer_lm", "--device", "cpu", "--cores-per-worker", "1", "--sequence-length", str(LENGTH)),
    *("--precision", "fp64", "--train-epochs", "2", "--train-evaluate-every", "2", "--train-label-smoothing", "0.1"),
    *("--learning-rate", "0.5", "--train-target", "perplexity=1.5"),
]  # two epochs of three steps of eight windows


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Iterator[Path]:
    with tiny_texts(tmp_path_factory.mktemp("data")) as folder:
        yield folder


@pytest.fixture(scope="module")
def ranks(data: Path, tmp_path_factory) -> dict[str, list[store.RankReport]]:
    """Framework -> what each of its ranks reports."""
    reports = {}
    for framework, workers in (("single", 1), ("torch_ddp", 2)):
        folder = tmp_path_factory.mktemp(framework)
        launcher = ["torchrun", "--standalone", "--nproc-per-node", "2"] if workers == 2 else [sys.executable]
        script = [str(CHECKOUT / FRAMEWORKS[framework].script), *RECIPE, "--batch-per-worker", str(8 // workers)]
        program = [str(CHECKOUT / "tests/train/small_language_model.py"), *script, "--record", str(folder)]
        done = forked.run([*launcher, *program], env={"DATA_ROOT": str(data)})
        assert done.returncode == 0, done.stderr[-3000:]
        reports[framework] = store.read_ranks(folder, workers)
    return reports


def test_two_workers_follow_one_process(ranks: dict[str, list[store.RankReport]]) -> None:
    (alone,), both = ranks["single"], ranks["torch_ddp"]
    (expected,) = alone.training["rows"]
    for rank in both:
        assert rank.loss_first == pytest.approx(alone.loss_first, rel=1e-9)
        (row,) = rank.training["rows"]
        for key in ("train_loss", "loss", "perplexity"):
            assert row[key] == pytest.approx(expected[key], rel=1e-9)
        for key in ("loss", "perplexity", "samples"):
            assert rank.training["evaluated"][key] == pytest.approx(alone.training["evaluated"][key], rel=1e-9)


def test_it_is_validated_and_tested_on_the_published_texts(ranks: dict[str, list[store.RankReport]]) -> None:
    training = ranks["torch_ddp"][1].training
    sizes = {"train": 26, "validation": 11, "test": 13}
    assert training["splits"] == {split: {split: size} for split, size in sizes.items()}
    assert all((size - 1) * LENGTH < tokens - 1 <= size * LENGTH
               for size, tokens in zip(sizes.values(), TOKENS.values(), strict=True))  # fmt: skip
    assert training["evaluated"]["samples"] == sizes["test"] and training["validated"]["samples"] == 11
    for scores in (training["evaluated"], training["validated"], *training["rows"]):
        assert scores["perplexity"] == pytest.approx(math.exp(scores["loss"]), rel=1e-12)
    assert training["ended_by"] == "steps" and training["reached"] is None


def test_a_text_that_is_read_as_it_runs_is_no_flaw_and_one_that_says_nothing_is(
    ranks: dict[str, list[store.RankReport]],
) -> None:
    (look,) = (look for flaw, _, _, look, _ in LOOKS if flaw == "F25")
    for trained in ranks.values():
        said: list[dict[str, Any]] = [rank.training for rank in trained]
        assert all(len(training["orders"]) == 2 and len(set(training["orders"])) == 1 for training in said)
        assert said[0]["one_order"] == "running text is read as it runs"
        assert look(tuple(Training.of(training) for training in said)) == ""
        silent = tuple(Training.of({**training, "one_order": ""}) for training in said)
        assert look(silent).startswith("2 epochs read their samples in 1 order")
