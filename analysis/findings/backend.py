"""Did gradients travel, and weights gather, as a fast run of this framework would?

F3   Horovod without NCCL: gradients of GPUs went through the host, and 2 GPUs ran at half of 1
F14  DDP on GPUs over gloo
carriers   one framework by MPI over shared memory, another by Gloo over TCP: their ratio is one of carriers too
overlap    on a CPU some frameworks compute while collectives are in flight, others wait: on GPUs all may overlap
F24  FSDP without a wrapping policy: one unit, gathered whole at once, nothing overlapped
"""

from __future__ import annotations

from collections.abc import Iterator

from analysis.findings import finding
from analysis.findings.evidence import Evidence, grouped
from analysis.findings.finding import DOUBT, NOTE, WRONG, Finding

THROUGH_THE_HOST = ("gloo", "host", "mpi")
HOROVODS = "host"
OVERLAPS = 0.2  # of the time in flight; below, what computes meanwhile is copying


def slow_backends(evidence: Evidence) -> Iterator[Finding]:
    several = [row for row in evidence.rows if row["device"] == "cuda" and int(row["workers"]) > 1]
    on_gpus = [row for row in several if not row["oversubscribe"]]  # of two workers on one GPU NCCL knows nothing
    slow = [(row, by) for row in on_gpus for by in set(evidence.fact(row, "communicator")) if by in THROUGH_THE_HOST]
    for by, pairs in grouped(slow, lambda pair: pair[1]).items():
        rows = [row for row, _ in pairs]
        flaw = "F3" if by == HOROVODS else "F14"
        remedy = "Build Horovod with NCCL operations" if by == HOROVODS else "Choose the nccl backend"
        text = (
            f"Gradients of GPUs go through the host ({by}) instead of NCCL, and the way there and back is measured: "
            f"{finding.named(rows)}. {remedy}, and run these again."
        )
        yield finding.about(flaw, "GPUs that do not use NCCL", text, WRONG, rows)
    yield from _unlike_carriers(evidence)
    yield from _unlike_overlap(evidence)
    whole = [row for row in evidence.rows if 1 in evidence.fact(row, "units") and int(row["workers"]) > 1]
    if whole:
        text = (
            "Sharded as one unit, so all weights are gathered at once, little memory is saved and nothing overlaps: "
            f"{finding.named(whole)}. Give it a wrapping policy, block by block."
        )
        yield finding.about("F24", "One unit, gathered whole", text, WRONG, whole)


def _unlike_carriers(evidence: Evidence) -> Iterator[Finding]:
    """Frameworks that are compared, with gradients that go different ways."""
    known = [row for row in evidence.rows if int(row["workers"]) > 1 and row["carrier"]]
    groups = grouped(known, lambda row: (row["model"], row["batch"], row["workers"])).values()
    unlike = [rows for rows in groups if len({row["carrier"] for row in rows}) > 1]
    if not unlike:
        return
    rows = [row for group in unlike for row in group]
    ways = "; ".join(
        f"{way} ({', '.join(dict.fromkeys(str(row['framework']) for row in by))})"
        for way, by in grouped(rows, lambda row: str(row["carrier"])).items()
    )
    text = (
        f"Gradients of compared frameworks are carried by unlike means: {ways}. A difference between them is one of "
        "carriers too: compare like with like (controller: gloo makes Horovod use Gloo)."
    )
    yield finding.about("carriers", "Unlike carriers", text, DOUBT, rows)


def _unlike_overlap(evidence: Evidence) -> Iterator[Finding]:
    """Frameworks that are compared on a CPU, of which only some hide their communication."""
    known = [row for row in evidence.rows if row["device"] == "cpu" and row["overlap"] == row["overlap"]]
    groups = grouped(known, lambda row: (row["model"], row["batch"], row["workers"])).values()
    rows = [row for group in groups if len({row["framework"] for row in group}) > 1 for row in group]
    most = {
        name: max(row["overlap"] for row in own) for name, own in grouped(rows, lambda row: row["framework"]).items()
    }
    hiding = [name for name, share in most.items() if share >= OVERLAPS]
    waiting = [name for name, share in most.items() if share < OVERLAPS]
    if not hiding or not waiting:
        return
    text = (
        f"Communication overlaps computing in {', '.join(hiding)} (up to {100 * max(most.values()):.0f} % of its time "
        f"in flight), in {', '.join(waiting)} in at most {100 * max(most[name] for name in waiting):.0f} %. On GPUs "
        "these may overlap too: take no ratio between them from this machine to one with GPUs."
    )
    yield finding.about("overlap", "Unlike overlap", text, NOTE, rows)
