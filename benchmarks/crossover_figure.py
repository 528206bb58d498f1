"""The crossover map drawn: links x target batches, each cell in the colour of who reaches the loss first there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.crossover import OPEN, Cell, Way
from benchmarks.crossover_text import seconds, times

ORDER = (Way("hivemind", "fp32"), Way("hivemind", "fp16"), Way("hivemind", "fp16", "fp16"),
         Way("hivemind", "fp16", "fp16", 10), Way("torch_ddp", "fp32"), Way("torch_ddp", "fp16"),
         Way("horovod", "fp32"))  # fmt: skip
WIDE, HIGH = 2.1, 1.05  # inches of a cell
TIED = "tied"


def draw(found: Sequence[Cell], loss: str) -> Any:
    """A grid with the links from slow to fast downwards, as they were measured, and target batches to the right."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch, Rectangle

    from analysis.show import style

    links = list(dict.fromkeys(cell.link for cell in found))
    targets = sorted({cell.target for cell in found})
    width, height = 1.3 + WIDE * len(targets), 1.75 + HIGH * len(links)
    figure = Figure(figsize=(width, height))
    axes = figure.add_axes((1.1 / width, 1.1 / height, WIDE * len(targets) / width, HIGH * len(links) / height))
    ways = _ways(found)
    colour = dict(zip(ways, style.style_colours(len(ways)), strict=True))
    for cell in found:
        x, y = targets.index(cell.target), links.index(cell.link)
        ours = colour[cell.winner] if cell.winner and cell.decentralised != OPEN else style.PALE
        face = _pale(ours) if ours != style.PALE else ours
        axes.add_patch(Rectangle((x, y), 1, 1, facecolor=face, edgecolor="white", linewidth=2))
        first, *rest = lines(cell)
        axes.text(x + 0.5, y + 0.2, first, ha="center", va="center", fontsize=style.SIZE, weight="bold")
        for place, line in enumerate(rest):
            axes.text(x + 0.5, y + 0.42 + 0.19 * place, line, ha="center", va="center", fontsize=style.SMALL - 0.8)
    axes.set(xlim=(0, len(targets)), ylim=(len(links), 0), xlabel="target batch: samples of both machines in one round")
    axes.set_xticks([place + 0.5 for place in range(len(targets))], [f"{target:,}" for target in targets])
    axes.set_yticks([place + 0.5 for place in range(len(links))], links)
    axes.set_ylabel("link between the two machines")
    axes.tick_params(length=0)
    axes.grid(False)
    for spine in axes.spines.values():
        spine.set_visible(False)
    patches = [Patch(facecolor=_pale(colour[way]), label=str(way)) for way in ways]
    patches.append(Patch(facecolor=style.PALE, edgecolor=style.GREY, label="tied, or nothing claimed"))
    figure.legend(
        handles=patches, loc="lower left", bbox_to_anchor=(0.1 / width, 0.1 / height), ncols=len(patches),
        frameon=False, fontsize=style.SMALL, title="fastest", alignment="left", handlelength=1.2, columnspacing=1.2,
    )  # fmt: skip
    title = f"Who reaches {loss or 'the loss'} first, on two machines?"
    figure.text(0.1 / width, 1 - 0.25 / height, title, fontsize=style.TITLE, weight="bold")
    note = "Bold: the fastest, or those not told apart. Below it: how many times as long others take (95 % intervals)."
    figure.text(0.1 / width, 1 - 0.45 / height, note, fontsize=style.SMALL, color="#555555")
    return figure


def lines(cell: Cell) -> list[str]:
    """What stands in a cell: who, the seconds, how far behind the next one is, and Hivemind."""
    first, tied = cell.fastest, cell.tied
    if cell.decentralised == OPEN:
        return [f"{first.way}?", "too few repeats: no claim", *_seconds(cell)]
    name = str(first.way) if len(tied) == 1 else f"{TIED}: " + _named_together([one.way for one in tied])
    following = next((one for one in cell.timed[1:] if one not in tied), None)
    said = [name, *_seconds(cell)]
    if following:
        said.append(f"{following.way}: {times(following.behind)}")
    peers = cell.best(decentralised=True)
    if peers and peers is not first and peers is not following:
        said.append(f"{peers.way}: {times(peers.behind)}")
    return said


def _named_together(ways: Sequence[Way]) -> str:
    """`DDP fp32, fp16; Horovod fp32`"""
    wires: dict[str, list[str]] = {}
    for way in ways:
        wires.setdefault(way.title, []).append(way.wire)
    return "; ".join(f"{name} {', '.join(each)}" for name, each in wires.items())


def _seconds(cell: Cell) -> list[str]:
    if cell.fastest.seconds:
        return [f"{seconds(cell.fastest.seconds)} to the loss"]
    return ["loss not reached" if cell.missed else "by samples per second"]


def _ways(found: Sequence[Cell]) -> list[Way]:
    """In one order, so that a colour means the same in every map."""
    there = {one.way for cell in found for one in cell.timed}
    return [way for way in ORDER if way in there] + sorted(there - set(ORDER))


def _pale(colour: str) -> tuple[float, float, float]:
    """Light enough for dark text upon it."""
    from matplotlib.colors import to_rgb

    red, green, blue = (0.45 * part + 0.55 for part in to_rgb(colour))
    return red, green, blue
