"""The table of public scripts: how a script's lines are held against what was seen, and its page."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks import public_scripts
from benchmarks.public_recipes import EPOCH_LINE, SCRIPTS, Script, mean_so_far
from benchmarks.public_scripts import DID_NOT_RUN, EQUAL, UNLIKE, Started, judged
from scaling_study.processes.process import Exit
from scaling_study.settings import CHECKOUT

LOSSES = (2.3012345, 2.2871, 2.15)
SCRIPT = Script("owner/name", "train.py", "{python} train.py", samples=8, steps=3, prints=EPOCH_LINE)
PRINTED = "".join(f"Train Epoch: 1 [{8 * step}/80 (10%)]\tLoss: {loss:.4f}\n" for step, loss in enumerate(LOSSES))


def seen(losses: tuple[float, ...] = LOSSES, rank: int = 0, world: int = 1, samples: float | None = 8.0) -> list[dict]:
    """The lines that the observer writes of one process."""
    steps = [{"kind": "step", "step": number, "loss": loss} for number, loss in enumerate(losses, start=1)]
    end = {"kind": "end", "samples_per_step": samples, "samples_unknown": "" if samples else "it asks", "backwards": 3}
    return [{"kind": "process", "rank": rank, "world": world, "pid": 100 + rank}, *steps, end]


def started(*processes: list[dict], text: str = PRINTED, code: int = 0, timed_out: bool = False) -> Started:
    return Started(text, Exit(code, 1.0, timed_out=timed_out), processes)


def test_a_script_that_prints_what_was_seen_is_equal_and_its_figures_are_in_the_row() -> None:
    row = judged(SCRIPT, started(seen()), started(text=PRINTED + "Train Epoch: 1 [24/80 (30%)]\tLoss: 2.1000\n"))
    assert (row["verdict"], row["why"]) == (EQUAL, "")
    assert [row[name] for name in public_scripts.FIGURES] == ["1", "3", "8", "3", "3"]


@pytest.mark.parametrize(
    ("script", "observed", "why"),
    [
        (SCRIPT, started(seen((2.3012345, 2.2872, 2.15))), "step 1: it prints 2.2871, 2.2872 was seen"),
        (SCRIPT, started(seen(LOSSES[:2])), "2 steps were seen, it makes 3"),
        (SCRIPT, started(seen(samples=16.0)), "samples: by its arguments 8"),
        (SCRIPT, started(seen(samples=None)), "samples: by its arguments 8"),
        (replace(SCRIPT, samples=None, prints=""), started(seen()), "samples: by its arguments not known"),
        (SCRIPT, started(seen(), code=1), "it ended with 1"),
        (SCRIPT, started(seen(), text="nothing"), "it printed no loss of a step that was seen"),
        (SCRIPT, started(seen(), seen(rank=1)), "2 processes trained, it starts 1"),
        (replace(SCRIPT, processes=2), started(seen(), seen(rank=1)), "worlds of [1] processes were seen"),
        (
            replace(SCRIPT, prints=r"Loss: (?P<loss>\S+) after (?P<backwards>\d+)"),
            started(seen(), text="Loss: 2.3012 after 4"),
            "it says 4 backward passes, 3 were seen",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_unlike_is_said(script: Script, observed: Started, why: str) -> None:
    row = judged(script, observed, None)
    assert row["verdict"] == UNLIKE and row["why"].startswith(why)


def test_a_loss_that_only_the_observed_run_prints_is_said() -> None:
    other = PRINTED.replace("2.2871", "2.2870")
    row = judged(SCRIPT, started(seen()), started(text=other))
    assert (row["verdict"], row["without"]) == (UNLIKE, "2")
    assert row["why"] == "step 1: without the observer it does not print 2.2871"
    ended = started(text=PRINTED.rpartition("Train")[0], timed_out=True)  # of its last line ranks may be missing
    assert judged(SCRIPT, started(seen()), ended)["without"] == "1"


def test_lines_say_what_their_recipe_says() -> None:
    """Of one rank, of any rank one after the other, of the mean so far."""

    def of(script: Script, text: str) -> str:
        two = started(seen((1.0, 3.0), 0, 2), seen((2.0, 4.0), 1, 2), text=text)
        return judged(replace(script, processes=2, steps=2), two, None)["verdict"]

    ranked = replace(SCRIPT, prints=r"\[(?P<rank>\d)\] (?P<step>\d): (?P<loss>\S+)")
    assert (of(ranked, "[1] 0: 2.00"), of(ranked, "[0] 0: 2.00")) == (EQUAL, UNLIKE)
    counted = replace(SCRIPT, prints=r"loss (?P<loss>\S+)")
    assert (of(counted, "loss 1.0\nloss 4.0"), of(counted, "loss 1.0\nloss 5.0")) == (EQUAL, UNLIKE)
    so_far = replace(ranked, means=mean_so_far)
    assert (of(so_far, "[0] 1: 2.0"), of(so_far, "[0] 1: 3.0")) == (EQUAL, UNLIKE)


@pytest.mark.parametrize(("number", "off"), [("2.30", 0.005), ("6.9e+00", 0.05), ("412", 0.5)])
def test_a_printed_number_is_known_to_half_of_its_last_digit(number: str, off: float) -> None:
    assert off < public_scripts.half_a_digit(number) < 1.05 * off


def test_a_script_that_never_trained_did_not_run_and_says_its_error() -> None:
    failed = started(text="Traceback (most recent call last):\nImportError: no module\n", code=1)
    row = judged(SCRIPT, failed, None)
    assert row["verdict"] == DID_NOT_RUN and "ImportError" in row["why"]


# --- what is committed ---


ROWS = public_scripts.read()


def test_the_table_has_every_script_as_its_recipe_is() -> None:
    assert [(row["repository"], row["script"]) for row in ROWS] == [(s.repository, s.path) for s in SCRIPTS]
    assert not [script.path for script, row in zip(SCRIPTS, ROWS, strict=True) if not public_scripts.is_of(script, row)]
    assert {row["verdict"] for row in ROWS} <= {EQUAL, UNLIKE, DID_NOT_RUN}
    assert all(row["why"] for row in ROWS if row["verdict"] != EQUAL)


def test_the_page_and_the_first_page_say_what_the_table_says() -> None:
    ran, equal = (sum(row["verdict"] in which for row in ROWS) for which in ((EQUAL, UNLIKE), (EQUAL,)))
    assert equal >= public_scripts.LEAST
    page, first = (
        " ".join((CHECKOUT / name).read_text(encoding="utf-8").split())
        for name in ("docs/internals/public-scripts.md", "README.md")
    )
    assert f"tried {len(ROWS)} public training scripts, unmodified: {ran} ran here" in page
    assert f"saw {equal} of these as they print" in page and f"The other {len(ROWS) - ran} " in page
    assert f"{equal} of {len(ROWS)} public" in first
