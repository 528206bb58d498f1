"""What takes most of a step, and the numbers that say so.

    compute         forward and backward, less what is told apart of them below
    launch          the part of them that no batch size changes: launching kernels (kernels.py)
    communication   what a step waits for after backward, and what collectives add to computing (attribution.py); of
                    peers, looking for each other (matchmaking) and averaging, each a share of its own
    input           waiting for the batch
    memory          updating the weights, which is moving them; and computing, where memory is its lower roof
                    (utilisation.py); and whatever was out of memory
    pipeline bubble stages with nothing to do, wherever they stood meanwhile (idle.py)

The rule is plain: the bottleneck is whichever takes the largest share of the step. Where forward and backward hold both
computing and communication, and nothing tells them apart, it is named only if it is the same whichever of the two all
of that is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from analysis.frames import outcomes
from analysis.frames.baseline import known
from analysis.frames.cache import once
from analysis.frames.results import Results
from analysis.frames.row_types import ConfigurationRow
from analysis.text.number_formats import number, percent, three_digits
from analysis.why import attribution, kernels, steps
from analysis.why.attribution import Attribution
from analysis.why.kernels import Fixed
from analysis.why.steps import AVERAGING, COMMUNICATION, COMPUTING, DATA, MATCHMAKING, OPTIMIZER, UNATTRIBUTED, Steps
from analysis.why.utilisation import Utilisation, utilisations

COMPUTE, LAUNCH, COMMUNICATE, INPUT, MEMORY, BUBBLE = KINDS = (
    "compute", "launch", "communication", "input", "memory", "pipeline bubble",
)  # fmt: skip
OTHER, MIXED, UNKNOWN = "not attributed", "compute or communication", "not known"
FIND, AVERAGE = OF_PEERS = ("matchmaking", "averaging")  # communication, told apart
SHARES = (*KINDS[:3], *OF_PEERS, *KINDS[3:], MIXED, OTHER)
DOING = {
    COMPUTE: "computing (forward and backward)",
    LAUNCH: "the fixed part of computing (launching kernels, reading weights)",
    COMMUNICATE: "communication", FIND: "peers that look for each other (matchmaking)",
    AVERAGE: "peers that average", INPUT: "waiting for batches", MEMORY: "updating the weights",
    BUBBLE: "stages waiting with nothing to do", OTHER: "what no phase covers",
    MIXED: "phases in which this framework both computes and communicates",
}  # fmt: skip
WORTH_A_WORD = 0.01  # of a step


@dataclass(frozen=True)
class Bottleneck:
    """Of one configuration. `shares`: of its step, adding up to 1, empty where phases are unknown."""

    row: ConfigurationRow
    kind: str  # of KINDS, or UNKNOWN
    evidence: str  # a sentence
    shares: Mapping[str, float]


@once
def bottlenecks(results: Results) -> list[Bottleneck]:
    """Of every configuration, in the order of results.configurations."""
    every = steps.steps(results)
    lines = kernels.lines(results)
    lost = {str(attributed.row["configuration"]): attributed for attributed in attribution.attributions(results)}
    used = {str(utilisation.row["configuration"]): utilisation for utilisation in utilisations(results)}
    judged = []
    for row in results.rows:
        name = str(row["configuration"])
        if name in every:
            judged.append(_judged(every[name], shares(every[name], lost.get(name), lines.get(name)), used.get(name)))
        else:
            judged.append(_without(row))
    return judged


def shares(ours: Steps, lost: Attribution | None = None, line: Fixed | None = None) -> dict[str, float]:
    """SHARES of the step; those that are nothing are left out.

    `lost` says what of computing is communication, `line` what of it is launching.
    """
    step = ours.mean()
    mean = step.shares
    shares_of = dict.fromkeys(SHARES, 0.0)
    shares_of[INPUT], shares_of[COMMUNICATE], shares_of[MEMORY] = (
        float(mean[at]) for at in (DATA, COMMUNICATION, OPTIMIZER)
    )
    shares_of[FIND], shares_of[AVERAGE] = float(mean[MATCHMAKING]), float(mean[AVERAGING])
    shares_of[BUBBLE], shares_of[OTHER] = step.idle, float(mean[UNATTRIBUTED])
    busy = steps.communicates_in(ours.row)
    apart = lost is not None and not lost.part("mixed") and not lost.why
    for phase in COMPUTING:
        hides = (phase in busy or steps.one_process(ours.row)) and not apart
        shares_of[MIXED if hides else COMPUTE] += float(mean[phase])
    if lost is not None and apart:
        _move(shares_of, lost.part("within"))
    elif OPTIMIZER in busy:
        shares_of[MIXED], shares_of[MEMORY] = shares_of[MIXED] + shares_of[MEMORY], 0.0
    if line is not None and shares_of[COMPUTE] > 0:
        of = sum(float(mean[phase]) for phase in line.phases)
        fixed = min(1.0, line.seconds / float(ours.step_seconds.mean()) / of) if of > 0 else 0.0
        shares_of[LAUNCH], shares_of[COMPUTE] = fixed * shares_of[COMPUTE], (1 - fixed) * shares_of[COMPUTE]
    return {name: share for name, share in shares_of.items() if share > 0}


def _move(parts: dict[str, float], share: float) -> None:
    """What collectives add to computing is communication."""
    taken = min(max(0.0, share), parts[COMPUTE])
    parts[COMPUTE], parts[COMMUNICATE] = parts[COMPUTE] - taken, parts[COMMUNICATE] + taken


def named(shares: Mapping[str, float]) -> str | None:
    """The kind with the largest share; None where that depends on what the mixed one is."""
    names = set()
    of_kinds = {kind: shares.get(kind, 0.0) for kind in KINDS}
    of_kinds[COMMUNICATE] += sum(shares.get(part, 0.0) for part in OF_PEERS)
    for meant in (COMPUTE, COMMUNICATE) if shares.get(MIXED) else (None,):
        clear = {kind: share + (shares.get(MIXED, 0.0) if kind == meant else 0.0) for kind, share in of_kinds.items()}
        names.add(max(clear, key=lambda kind: clear[kind]))
    return names.pop() if len(names) == 1 else None


def _judged(ours: Steps, parts: Mapping[str, float], used: Utilisation | None) -> Bottleneck:
    kind = named(parts)
    largest_first = sorted(parts.items(), key=lambda item: item[1], reverse=True)
    first = kind or largest_first[0][0]
    if first == COMMUNICATE and any(parts.get(part) for part in OF_PEERS):
        first = max((COMMUNICATE, *OF_PEERS), key=lambda part: parts.get(part, 0.0))
    rest = [
        f"{percent(share)} into {DOING[name]}"
        for name, share in largest_first
        if name != first and share >= WORTH_A_WORD
    ]
    step = f"a step of {three_digits(1000 * float(ours.step_seconds.mean()))} ms"
    text = ", ".join([f"{percent(parts.get(first, 0.0))} of {step} goes into {DOING[first]}", *rest[:2]])
    if kind is None:
        return Bottleneck(ours.row, UNKNOWN, f"{text}; nothing measured tells the two apart.", parts)
    if kind == MEMORY:
        text += _moved(ours.row)
    if kind == COMPUTE and used is not None and used.share is not None:
        text += f"; {percent(used.share)} of the device's measured peak"
        if used.under_memory:
            kind = MEMORY
            text += (
                f", and at about {number(used.intensity or 0.0)} FLOP/byte memory is the lower roof "
                f"(below {number(used.ridge or 0.0)})"
            )
    return Bottleneck(ours.row, kind, f"{text}.", parts)


def _moved(row: ConfigurationRow) -> str:
    """What the update passes through memory, where it was counted."""
    state = [row[name] for name in ("parameters_bytes", "gradients_bytes", "optimizer_bytes")]
    whole = sum(float(size) for size in state if known(size))
    what = "parameters, gradients and optimiser state go through memory for it"
    return f"; {number(whole / 1e6)} MB of {what}" if whole else ""


def _without(row: ConfigurationRow) -> Bottleneck:
    """One that was not measured, or whose phases were not."""
    if not row["n"]:
        if row["status"] == "oom":
            return Bottleneck(row, MEMORY, "Out of memory.", {})
        return Bottleneck(row, UNKNOWN, f"Not measured: {outcomes.word(row)}.", {})
    return Bottleneck(row, UNKNOWN, "Its phases were not measured.", {})
