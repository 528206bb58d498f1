"""Parts of sequences: what the gate says of broken ones, of parts that count unequally, and what is refused at once."""

from __future__ import annotations

import sys
from pathlib import Path

import forked
import pytest
from trained import a_trial, ask_for, gate_of, ran, ranks_of

from scaling_study.records import store

pytestmark = pytest.mark.slow
# Runs the script with some of its text replaced.
BROKEN = """
import pathlib, sys
{unequal}
sys.argv = sys.argv[1:]
text = pathlib.Path(sys.argv[0]).read_text()
assert text.count({old!r}) == 1
exec(compile(text.replace({old!r}, {new!r}), sys.argv[0], "exec"), {{"__name__": "__main__"}})
"""
# The last three of eight targets do not count: those of the second of two parts, but for one.
UNEQUAL = """
from scaling_study.workloads import wikitext2
whole = wikitext2.synthetic
def synthetic(*given):
    fetch = whole(*given)
    def fetched(ids):
        tokens, targets = fetch(ids)
        targets = targets.clone()
        targets[:, 5:] = -100
        return tokens, targets
    return fetched
wikitext2.synthetic = synthetic
"""
JUDGE = """
import pathlib, sys
from scaling_study.parity import compare
{unequal}
for folder in sys.argv[1:]:
    compare.main(pathlib.Path(folder))
"""
SCALED = "* (part[1] >= 0).sum() / (whole[1] >= 0).sum()"
FAULTS = {  # name -> attention, text of the script, what is written in its place, and the check that says so
    "positions that begin at 0 in each part": (
        "all_to_all", "own if model.training else None", "None", "loss of step 1",
    ),
    "the mean over all workers": (
        "all_to_all", "(loss * n).backward()", "loss.backward()", "the update is 0.50 times the right one",
    ),
    "gradients of its own keys alone": (
        "all_gather", "dist.reduce_scatter_tensor(own := gradient.new_empty(pieces[0].shape), torch.cat(pieces), "
        "group=ctx.group)", "own = pieces[dist.get_rank(ctx.group)]", "weights after step 1",
    ),
}  # fmt: skip


def trained(folder: Path, attention: str, old: str, new: str, unequal: str = "") -> Path:
    """A folder with the traces of a gate by a script in which `new` is written for `old`."""
    folder.mkdir()
    (folder / "broken.py").write_text(BROKEN.format(old=old, new=new, unequal=unequal))
    gate = gate_of(a_trial("torch_context", model="llama_tiny", attention=attention, context_parallel=2))
    ask_for(gate, folder)
    ranks_of(gate, folder, folder / "broken.py")
    return folder


def verdicts(folder: Path, *judged: Path, unequal: str = "") -> list[str]:
    (folder / "judge.py").write_text(JUDGE.format(unequal=unequal))
    forked.ended(forked.run([sys.executable, folder / "judge.py", *judged]))
    return [store.load(each / "parity.json")["verdict"] for each in judged]


def test_the_gate_names_what_broken_parts_do_wrong(tmp_path: Path) -> None:
    folders = [trained(tmp_path / str(n), *fault[:3]) for n, fault in enumerate(FAULTS.values())]
    for (name, fault), verdict in zip(FAULTS.items(), verdicts(tmp_path, *folders), strict=True):
        assert fault[3] in verdict, name


def test_parts_weigh_by_the_tokens_that_count(tmp_path: Path) -> None:
    right = trained(tmp_path / "right", "all_gather", SCALED, SCALED, UNEQUAL)
    wrong = trained(tmp_path / "wrong", "all_gather", SCALED, "/ n", UNEQUAL)
    first, second = verdicts(tmp_path, right, wrong, unequal=UNEQUAL)
    assert first == "passed" and second.startswith("loss of step 1: ")


def test_a_part_that_does_not_divide_is_one_line(tmp_path: Path) -> None:
    done = ran(a_trial("torch_context", model="llama_tiny", workers=3, oversubscribe=True), tmp_path)
    assert done.returncode == 1
    assert "--context-parallel: context_parallel=3 does not divide sequence_length=64" in done.stderr
    assert "context_parallel=3 does not divide the 2 key/value heads of llama_tiny" in done.stderr
