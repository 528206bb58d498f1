"""The crossover map in words: a table with a row for each link and target batch, and what follows for two machines."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from benchmarks import publish
from benchmarks.crossover import LOSES, OPEN, TIES, WINS, Cell, Choice, Measured, above_one, cells, choices
from scaling_study.stats.intervals import Interval

BY_SAMPLES = "Nothing was trained to a loss: who is faster goes by samples per second."
HEADERS = (
    *("link", "target batch", "fastest", "next", "next takes", "seconds to the loss, fastest"),
    *("Hivemind takes", "samples of its round", "decentralised training"),
)


def page(measured: Measured) -> str:
    """The table, how many rounds each target batch needs, and the advice; Markdown."""
    found = cells(measured)
    lines = [*publish.markdown(HEADERS, map(words, found)), ""]
    lines += [recommended(found), "", *([packed(measured), ""] if any(measured.packed.values()) else [])]
    lines += [f"Rounds to {measured.loss}: {needed(measured)}.", ""] if measured.loss else [BY_SAMPLES, ""]
    return "\n".join([*lines, advice(measured, found)])


def recommended(found: Sequence[Cell]) -> str:
    """Cells in which Hivemind sends as its documentation recommends."""
    there = [cell for cell in found if any(one.way.weights for one in cell.timed)]
    said = f"{len(there)} of {len(found)} cells have Hivemind as its documentation recommends, weights in 16 bits too"
    named = f": {'; '.join(map(_place, there))}" if there else ""
    return f"{said}{named}. `fp16+fp16/10`: gradients in fp16, and weights in fp16 after every tenth round."


def packed(measured: Measured) -> str:
    """`Megabytes that a peer packs in a round (in theory): Hivemind fp16+fp16 44.6 (44.7), ...`"""
    said = (
        f"{way} {fmean(sent for sent, _ in each) / 1e6:.1f} ({fmean(theory for _, theory in each) / 1e6:.1f})"
        for way, each in sorted(measured.packed.items())
        if each
    )
    return f"Megabytes that a peer packs in a round (in theory): {', '.join(said)}."


def words(cell: Cell) -> tuple[str, ...]:
    """A cell as a row of the table."""
    first, following = cell.fastest, cell.timed[1] if len(cell.timed) > 1 else None
    name = " = ".join(str(one.way) for one in cell.tied) if cell.decentralised != OPEN else f"{first.way} (no claim)"
    peers = cell.best(decentralised=True)
    return (
        cell.link, f"{cell.target:,}", name, str(following.way) if following else "",
        times(following.behind) if following else "", to_the_loss(cell),
        times(peers.behind) if peers else "", f"{peers.samples:,.0f}" if peers else "", cell.decentralised,
    )  # fmt: skip


def to_the_loss(cell: Cell) -> str:
    """Seconds of the fastest, or why they are not known."""
    if cell.fastest.seconds:
        return seconds(cell.fastest.seconds)
    return "not reached" if cell.missed else "not known"


def needed(measured: Measured) -> str:
    """`200 at a target batch of 256 (190, 205, 205), ...`"""
    said = []
    for target in sorted({*measured.rounds, *measured.missed}):
        rounds, missed = measured.rounds.get(target, []), measured.missed.get(target, 0)
        each = ", ".join(f"{value:.0f}" for value in rounds)
        mean = f"{sum(rounds) / len(rounds):.0f}" if rounds and not missed else f"missed by {missed} seeds"
        said.append(f"{mean} at a target batch of {target:,}" + (f" ({each})" if each else ""))
    return "; ".join(said)


def advice(measured: Measured, found: Sequence[Cell]) -> str:
    """Two sentences: where decentralised training wins, and what to do with two machines."""
    return f"{where(found)} {what_to_do(choices(measured, found))}"


def where(found: Sequence[Cell]) -> str:
    """Where decentralised training wins, ties and loses."""
    if not found or all(cell.decentralised == OPEN for cell in found):
        return "With fewer than three repeats nothing is claimed."
    counts = {verdict: [c for c in found if c.decentralised == verdict] for verdict in (WINS, TIES, LOSES, OPEN)}
    said = [
        f"{verdict} in {len(there)}" + (f" ({'; '.join(map(_place, there))})" if named and there else "")
        for verdict, named in ((WINS, True), (TIES, True), (LOSES, False), (OPEN, True))
        if (there := counts[verdict]) or verdict == WINS
    ]
    behind = [(peers.behind.mean, cell, peers.behind) for cell in found if (peers := cell.best(decentralised=True))]
    spread = ""
    if behind and counts[LOSES]:
        _, cell, ratio = max(behind, key=lambda one: one[0])
        spread = f"; at its worst it takes {times(ratio)} as long as the fastest ({_place(cell)})"
    return f"Of {len(found)} cells, decentralised training {', '.join(said)}{spread}."


def what_to_do(chosen: Sequence[Choice]) -> str:
    """For each link, what reaches the loss soonest."""
    if not chosen:
        return "Nothing was trained to a loss that every seed reached, so seconds to it are not known."
    return "With two machines, train " + "; ".join(map(_choice, chosen)) + "."


def _choice(choice: Choice) -> str:
    first = f"over {choice.cell.link} by {choice.timed.way} with a target batch of {choice.cell.target:,}"
    assert choice.timed.seconds
    first += f" ({seconds(choice.timed.seconds)} to the loss)"
    if choice.behind is None or choice.other is None or choice.other_cell is None:
        return first
    other = f"{choice.other.way}, at its best with {choice.other_cell.target:,},"
    if above_one(choice.behind):
        return f"{first}: {other} takes {times(choice.behind)} as long"
    why = "which is not told from it" if choice.behind.low is not None else "of which nothing is claimed"
    return f"{first}, or by {other} {why} ({times(choice.behind)} as long)"


def times(ratio: Interval) -> str:
    """`1.52 times (1.40 to 1.66)`"""
    return f"{number(ratio.mean)} times" + ("" if ratio.low is None else f" ({_interval(ratio)})")


def seconds(value: Interval) -> str:
    """`212 s (190 to 236)`"""
    return f"{number(value.mean)} s" + ("" if value.low is None else f" ({_interval(value)})")


def number(value: float) -> str:
    """Three figures."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _interval(of: Interval) -> str:
    assert of.low is not None and of.high is not None
    return f"{number(of.low)} to {number(of.high)}"


def _place(cell: Cell) -> str:
    return f"{cell.link}, {cell.target:,}"
