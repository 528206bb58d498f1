"""A tiny Llama trained by Muon to a result: by DDP, FSDP2, over parts of sequences and matrices as by one process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tiny_texts import tiny_texts
from tiny_trainings import Trainings

from scaling_study.records.schema import RankReport

pytestmark = pytest.mark.slow
RECIPE = [
    *("--model", "llama_tiny", "--device", "cpu", "--cores-per-worker", "1", "--sequence-length", "8"),
    *("--precision", "fp64", "--train-steps", "6", "--train-evaluate-every", "1", "--train-optimizer", "muon"),
    *("--learning-rate", "0.01", "--train-weight-decay", "0.1", "--train-clip-norm", "1"),
]  # two epochs of three steps of eight windows
WORDS = """
import runpy, sys
from scaling_study.workloads import llama, wikitext2
llama.text_data = lambda trial, ranks, length, byte_pairs: wikitext2.text_data(trial, ranks, length)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
RUNS = {  # workers, and flags
    "single": (1, ["--batch-per-worker", "8"]),
    "torch_ddp": (2, ["--batch-per-worker", "4"]),
    "torch_fsdp2": (2, ["--batch-per-worker", "4"]),
    "torch_context": (2, ["--batch-per-worker", "8", "--attention", "all_gather"]),
    "torch_tp": (2, ["--batch-per-worker", "8"]),
}
HIDDEN = 2 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 192)  # of 164,160 parameters


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, list[RankReport]]]:
    """Framework -> what each of its ranks reports; `killed`: of torch_tp, after five steps, and then gone on."""
    program = tmp_path_factory.mktemp("program") / "words.py"
    program.write_text(WORDS)
    with tiny_texts(tmp_path_factory.mktemp("data")) as data:
        trained = Trainings(tmp_path_factory.mktemp, RECIPE, DATA_ROOT=str(data))
        before = [str(program)]
        made = {name: trained(name, workers, *flags, before=before) for name, (workers, flags) in RUNS.items()}
        workers, flags = RUNS["torch_tp"]
        yield {**made, "killed": trained("torch_tp", workers, *flags, kill="steps:5", before=before)}


@pytest.mark.parametrize("framework", [name for name in RUNS if name != "single"])
def test_two_workers_follow_one_process(ranks: dict[str, list[RankReport]], framework: str) -> None:
    ((alone,), both) = ranks["single"], ranks[framework]
    assert len(alone.training.rows) == 2 and alone.training.rows[0]["loss"] > alone.training.rows[1]["loss"]
    for rank in both:
        for row, expected in zip(rank.training.rows, alone.training.rows, strict=True):
            for key in ("train_loss", "loss", "perplexity"):
                assert row[key] == pytest.approx(expected[key], rel=1e-9), "sharded Muon of torch's own: 3e-2"
        for key in ("loss", "perplexity", "samples"):
            assert rank.training.evaluated[key] == pytest.approx(alone.training.evaluated[key], rel=1e-9)
        groups = [(group.name, group.parameters) for group in rank.training.groups]
        assert groups == [("muon", HIDDEN), ("adamw", 164_160 - HIDDEN)]


def test_parts_of_matrices_go_on_from_a_checkpoint_as_if_nobody_had_killed_them(
    ranks: dict[str, list[RankReport]],
) -> None:
    for whole, resumed in zip(ranks["torch_tp"], ranks["killed"], strict=True):
        assert (whole.training.resumed, resumed.training.resumed) == (0, 1)
        assert resumed.training.orders == whole.training.orders
        for key in ("train_loss", "loss"):
            told = [[row[key] for row in rank.training.rows] for rank in (resumed, whole)]
            assert told[0] == pytest.approx(told[1], rel=1e-12)
