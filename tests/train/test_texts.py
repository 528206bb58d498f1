"""Language models are trained on a text as it runs, alike on any number of workers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import pytest
from tiny_texts import TOKENS, tiny_texts
from tiny_trainings import HERE, Trainings

from analysis.views.training_flaws import LOOKS
from scaling_study.records.schema import RankReport

pytestmark = pytest.mark.slow
LENGTH = 8
RECIPE = [
    *("--model", "transformer_lm", "--device", "cpu", "--cores-per-worker", "1", "--sequence-length", str(LENGTH)),
    *("--precision", "fp64", "--train-epochs", "2", "--train-evaluate-every", "2", "--train-label-smoothing", "0.1"),
    *("--learning-rate", "0.5", "--train-target", "perplexity=1.5"),
]  # two epochs of three steps of eight windows


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, list[RankReport]]]:
    """Framework -> what each of its ranks reports."""
    small = [str(HERE / "small_language_model.py")]
    with tiny_texts(tmp_path_factory.mktemp("data")) as data:
        trained = Trainings(tmp_path_factory.mktemp, RECIPE, DATA_ROOT=str(data))
        yield {
            framework: trained(framework, workers, "--batch-per-worker", str(8 // workers), before=small)
            for framework, workers in (("single", 1), ("torch_ddp", 2))
        }


def test_two_workers_follow_one_process(ranks: dict[str, list[RankReport]]) -> None:
    (alone,), both = ranks["single"], ranks["torch_ddp"]
    (expected,) = alone.training.rows
    for rank in both:
        assert rank.loss_first == pytest.approx(alone.loss_first, rel=1e-9)
        (row,) = rank.training.rows
        for key in ("train_loss", "loss", "perplexity"):
            assert row[key] == pytest.approx(expected[key], rel=1e-9)
        for key in ("loss", "perplexity", "samples"):
            assert rank.training.evaluated[key] == pytest.approx(alone.training.evaluated[key], rel=1e-9)


def test_it_is_validated_and_tested_on_the_published_texts(ranks: dict[str, list[RankReport]]) -> None:
    training = ranks["torch_ddp"][1].training
    sizes = {"train": 26, "validation": 11, "test": 13}
    assert training.splits == {split: {split: size} for split, size in sizes.items()}
    assert all((size - 1) * LENGTH < tokens - 1 <= size * LENGTH
               for size, tokens in zip(sizes.values(), TOKENS.values(), strict=True))  # fmt: skip
    assert training.evaluated["samples"] == sizes["test"] and training.validated["samples"] == 11
    for scores in (training.evaluated, training.validated, *training.rows):
        assert scores["perplexity"] == pytest.approx(math.exp(scores["loss"]), rel=1e-12)
    assert training.ended_by == "steps" and training.reached is None


def test_a_text_that_is_read_as_it_runs_is_no_flaw_and_one_that_says_nothing_is(
    ranks: dict[str, list[RankReport]],
) -> None:
    (look,) = (look for flaw, _, _, look, _ in LOOKS if flaw == "F25")
    for trained in ranks.values():
        said = [rank.training for rank in trained]
        assert all(len(training.orders) == 2 and len(set(training.orders)) == 1 for training in said)
        assert said[0].one_order == "running text is read as it runs"
        assert look(tuple(said)) == ""
        silent = tuple(replace(training, one_order="") for training in said)
        assert look(silent).startswith("2 epochs read their samples in 1 order")
