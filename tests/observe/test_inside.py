"""One step is looked into, once, early, and whole; where it cannot be, the training is as ever and the reason is said.

What steps of each kind of script hold is held to theory in test_kinds.py.
"""

from __future__ import annotations

import ast
import functools
import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from observe import scripts
from observe.test_kinds import Run, run  # noqa: F401  a fixture
from scaling_study import observe
from scaling_study.launch.observed import reports
from scaling_study.observe.hooks import keep_hooks
from scaling_study.observe.inside import NOTHING_SENT, SENT_ONCE, Counts, Exchanges, StepInspection, of_shapes
from scaling_study.records.schema import waited_for
from scaling_study.trial import Trial, Window


class Planned(StepInspection):
    """A look at nothing: which optimizer steps it would have seen."""

    def __init__(self) -> None:
        super().__init__(lambda: "rest", lambda: {"by": "", "world": None}, list)

    def _begin(self, name: str) -> None:
        self.mode = self.begun = name

    def _take(self) -> None:
        self.found, self.due = {"of": self.begun}, False

    def leave(self) -> None:
        self.mode = None


@pytest.mark.parametrize(
    ("order", "seen", "of"),
    [
        ("AAAAAAAA", [3], "A"),
        ("DGDGDGDG", [3, 4], "G"),
        ("ABCABCABC", [3, 4, 5, 6], "C"),  # the first began before there was a C
        ("AAABAAABAAAB", [3, 5, 6, 7, 8], "B"),  # the first look was of a part of the step
        ("AA", [], None),
        ("AAAAAAAAAAB", [3], "A"),  # B comes too late: of its step nothing is said
    ],
)
def test_what_is_looked_at_is_one_whole_turn_of_all_optimizers(order: str, seen: list[int], of: str | None) -> None:
    look = Planned()
    each = enumerate(order, start=1)
    assert [at for at, name in each if look.end(name, (at - 1) // len({*order[:at]}))] == seen
    assert look.found.get("of") == of
    rarest = min(sorted(set(order), reverse=True), key=order.count)
    known = "unknown" not in look.summary(rarest, {name: order.count(name) for name in order})
    assert known == (bool(seen) and order.count(of or "") <= order.count(rarest) + 1)


class Operator:
    """One of torch's, by its name alone."""

    def __init__(self, name: str) -> None:
        self.called = name
        self._overloadpacket = name

    def name(self) -> str:
        return self.called


class Tensor:
    def __init__(self, numbers: int) -> None:
        self.numbers = numbers

    def numel(self) -> int:
        return self.numbers

    def element_size(self) -> int:
        return 4


def test_the_whole_of_a_collective_counts_and_products_without_a_formula_are_named() -> None:
    counts = Counts({"aten::mm": lambda a, b, out_val: a * b}, lambda: "forward")
    counts.saw(Operator("aten::mm"), (3, 5), {}, None)
    counts.saw(Operator("aten::add.Tensor"), (3, 5), {}, None)
    counts.saw(Operator("c10d::_allgather_base_"), (Tensor(8), Tensor(4), object()), {}, None)
    counts.saw(Operator("c10d::reduce_scatter_"), ([Tensor(4)], [[Tensor(4), Tensor(4)]]), {}, None)
    counts.saw(Operator("c10d::barrier"), (Tensor(1),), {}, None)
    assert (counts.flops, counts.bytes) == ({"forward": 15}, {"all_gather": 32, "reduce_scatter": 32})
    assert not counts.unknown and not counts.cut
    for name in ("flash_attn::_flash_attn_forward", "aten::_grouped_mm", "aten::mkldnn_rnn_layer"):
        counts.saw(Operator(name), (), {}, None)
    counts.saw(Operator("aten::_thnn_fused_lstm_cell"), (), {}, None)
    counts.saw(Operator("c10d::send"), ([Tensor(2)],), {}, None)
    assert counts.unknown == {"_flash_attn_forward", "_grouped_mm", "mkldnn_rnn_layer"} and counts.cut


def exchanged(steps: int, *calls: tuple[int, int], looked_at: int = 2) -> Exchanges:
    """After so many steps, with calls of (the step before which they are made, bytes)."""
    seen = Exchanges()
    for step in range(steps):
        seen.looking = step == looked_at
        for at, size in calls:
            if at == step:
                seen.saw("allreduce", size)
        seen.step += 1
    return seen


def found(sent: dict[str, int] | None, why: str = NOTHING_SENT) -> dict[str, Any]:
    unknown = {} if sent is not None else {"communication_bytes": why}
    return {"communication_bytes": sent, "allreduce_bytes": sent and sent.get("allreduce"), "unknown": unknown}


EVERY_FOURTH = [(4, 100), (8, 100), (12, 100)]


@pytest.mark.parametrize(
    ("seen", "one", "sent"),
    [
        pytest.param(exchanged(14, *EVERY_FOURTH), found(None), {"allreduce": 25}, id="local SGD"),
        pytest.param(exchanged(14, *EVERY_FOURTH, looked_at=4), found({"allreduce": 100}), {"allreduce": 25},
                     id="local SGD, in the step that was looked at"),
        pytest.param(exchanged(14, (0, 8), *EVERY_FOURTH, looked_at=4), found({"allreduce": 100}), {"allreduce": 25},
                     id="and before the first"),
        pytest.param(exchanged(9, *((step, 7) for step in range(9))), found({"allreduce": 7}), {"allreduce": 7},
                     id="in every step"),
        pytest.param(exchanged(9), found({"allreduce": 40}), {"allreduce": 40}, id="buckets of DDP alone"),
        pytest.param(exchanged(9, (4, 8), (6, 8), (8, 8)), found({"allreduce": 40}), {"allreduce": 44},
                     id="a loss beside buckets of DDP"),
        pytest.param(exchanged(9, (2, 100)), found({"allreduce": 100}), SENT_ONCE, id="once, and looked at"),
        pytest.param(exchanged(9, (5, 100)), found(None), NOTHING_SENT, id="once, and not looked at"),
        pytest.param(exchanged(9, (2, 8)), found({"allreduce": 48}), {"allreduce": 48}, id="once, beside DDP"),
        pytest.param(exchanged(14, *EVERY_FOURTH), found(None, "it is compiled"), "it is compiled", id="not counted"),
    ],
)  # fmt: skip
def test_bytes_that_come_in_some_steps_alone_are_a_mean_of_whole_periods(
    seen: Exchanges, one: dict[str, Any], sent: dict[str, int] | str
) -> None:
    told = seen.in_a_step(one, 1.0)
    if isinstance(sent, str):
        assert (told["communication_bytes"], told["unknown"]) == (None, {"communication_bytes": sent})
    else:
        assert (told["communication_bytes"], told["unknown"]) == (sent, {})
        assert told["allreduce_bytes"] == sent["allreduce"]


def test_formulas_of_torch_2_1_are_given_shapes() -> None:
    small, large = Tensor(2), Tensor(6)
    small.shape, large.shape = (1, 2), (2, 3)  # type: ignore[attr-defined]
    formula = of_shapes(lambda a, b, bias, out_shape, **named: (a, b, bias, out_shape, named))  # type: ignore[arg-type]
    given = formula(small, [large, large], None, out_val=(small, 3), stride=[1])
    assert given == ((1, 2), ((2, 3), (2, 3)), None, ((1, 2), 3), {"stride": [1]})


class Optimizer:
    """As torch 2.1 has it: a step with hooks wraps the one without."""

    def step(self, closure: Any = None) -> str:
        return "stepped"

    @staticmethod
    def profile_hook_step(step: Any) -> Any:
        @functools.wraps(step)
        def hooked(*given: Any) -> str:
            return f"{step(*given)}, hooked"

        return hooked


@pytest.mark.parametrize("source", ["unwrapped_step = opt.step.__wrapped__", "nothing of the kind"])
def test_an_older_torch_that_compiles_cannot_take_hooks_off_optimizers(source: str, tmp_path: Path) -> None:
    (tmp_path / "eval_frame.py").write_text(source)
    own = type("Own", (Optimizer,), {"profile_hook_step": staticmethod(Optimizer.profile_hook_step)})
    keep_hooks(own, str(tmp_path / "eval_frame.py"))
    step = own.profile_hook_step(Optimizer.step)  # type: ignore[attr-defined]
    assert step(own()) == "stepped, hooked" and list(inspect.signature(step).parameters) == ["self", "closure"]
    assert hasattr(step, "__wrapped__") == source.startswith("nothing")


def test_no_peak_of_the_process_that_started_a_command_is_taken_for_its_own() -> None:
    """As ru_maxrss would be, which lives on when a launcher becomes the training."""
    small = "from scaling_study.observe.inside import peak_resident_bytes as peak; print(peak())"
    large = f"import os, sys; held = b'x' * (150 << 20); os.execv(sys.executable, [sys.executable, '-c', {small!r}])"
    done = subprocess.run([sys.executable, "-c", large], capture_output=True, text=True, check=True)
    assert 1 << 20 < int(done.stdout) < 100 << 20


def test_the_observer_is_written_for_python_3_9() -> None:
    """In its syntax, and in what is written most without thinking of 3.9; also the package around it."""
    room = Path(observe.__file__).parent
    sources = [room.parent / "__init__.py", *sorted(room.rglob("*.py"))]
    assert len(sources) >= 8
    for path in sources:
        tree = ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 9))
        future = [node for node in tree.body if isinstance(node, ast.ImportFrom) and node.module == "__future__"]
        assert future, f"{path}: X | None in annotations"
        for node in ast.walk(tree):
            newer = isinstance(node, ast.Call) and {word.arg for word in node.keywords} & {"strict", "slots", "kw_only"}
            assert not newer, f"{path}:{getattr(node, 'lineno', 0)}"
            united = isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("isinstance", "issubclass")
            assert not (united and isinstance(node.args[1], ast.BinOp)), f"{path}: isinstance(x, A | B)"


WATCHED = """
class Watched(torch.utils.data.Dataset):
    def __len__(self):
        return 32
    def __getitem__(self, index):
        from torch.utils._python_dispatch import _get_current_dispatch_mode
        return *data[index], _get_current_dispatch_mode() is not None
for epoch in range(3):
    for x, y, watched in DataLoader(Watched(), 16, num_workers=1):
        step(x, y)
        print("watched", bool(watched.any()), flush=True)
"""
BROKEN = """
from torch.utils import flop_counter
formulas = flop_counter.flop_registry
formulas[torch.ops.aten.addmm] = lambda *args, **named: {}["planted"]
"""
OWN_MODE = """
from torch.utils.flop_counter import FlopCounterMode
with FlopCounterMode(display=False) as counter:
    for x, y in DataLoader(data, 16):
        step(x, y)
print(counter.get_total_flops())
"""


@pytest.mark.slow
def test_processes_that_are_forked_meanwhile_are_not_looked_into(run: Run) -> None:  # noqa: F811
    done, [[_, *steps, end]] = run(WATCHED, 1, "watched")
    assert [step["looked_at"] for step in steps] == [False, False, True, False, False, False]
    assert done.stdout.count("watched False") == 6 and end["inside"]["flops"] == 11264


@pytest.mark.slow
def test_an_evaluation_puts_the_look_off(run: Run) -> None:  # noqa: F811
    _, [[_, *steps, end]] = run(scripts.EVALUATION.replace("index == 2", "index == 1"), 1, "off")
    assert [step["looked_at"] for step in steps] == [False, False, True, True, False, False]
    assert end["inside"]["flops"] == 11264, "of the fourth step alone"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "why"),
    [
        (BROKEN + scripts.PLAIN, "KeyError: 'planted'"),
        (OWN_MODE, "a mode of torch's dispatcher of its own"),
        (scripts.PLAIN.replace("data, 16", "data, 48"), "fewer than three steps"),
    ],
)
def test_where_nothing_can_be_counted_the_reason_is_said_and_losses_are_as_ever(
    script: str,
    why: str,
    run: Run,  # noqa: F811
) -> None:
    plain, _ = run(script)
    done, [[_, *_, end]] = run(script, 1, "seen")
    assert done.stdout == plain.stdout
    assert end["why"] == "the script ended"
    assert end["inside"].get("flops") is None and why in end["inside"]["unknown"]["flops"]


@pytest.mark.slow
def test_the_rank_that_the_others_wait_for_is_found_with_how_long(run: Run) -> None:  # noqa: F811
    """Its loader takes 5 ms longer: DDP's backward equalises both ranks, so their steps take as long."""
    _, processes = run(scripts.SLOW_RANK, 2, "slow")
    trial = Trial(
        framework="command", command="x", device="cpu", workers=2, batch_per_worker=16, window=Window(10, 100, 0.0)
    )
    both: list[Any] = reports(trial, processes, ())
    last = waited_for(both)
    assert last and last.rank == 1
    assert 0 < last.late.low < last.late.seconds < last.late.high and 3e-3 < last.late.seconds < 50e-3
    assert abs(both[0].window_seconds - both[1].window_seconds) < 100 * 5e-3 / 2, "without DDP it would be the double"
    assert both[0].allreduce_bytes == both[0].parameters * 4 == 712
    assert both[0].forward_flops_per_sample == 320 and both[0].step_flops_per_sample == 704, "no gradient of inputs"
