"""Bytes that a worker hands to collectives in one step: by kind, and whether they travelled as a fast run's would."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pandas as pd

from analysis import findings
from analysis.findings import DOUBT, NOTE, WRONG, Evidence, Finding, Row, grouped
from analysis.frames.configurations import BATCH_KEYS, KEYS, known, values_of
from analysis.frames.measured import COMMUNICATION_COLUMNS
from analysis.frames.results import Results, once
from analysis.frames.rows import as_rows
from analysis.show import notes
from analysis.show.layout import Listing
from analysis.text import megabytes, percent, shown
from analysis.views.memory import one_batch, series_name
from analysis.views.view import ModelTable, View
from scaling_study.frameworks import FRAMEWORKS, POWERSGD

# Counted at the call. With p bytes of fp32 parameters an allreduce hands over p, in fp16 p/2. FSDP
# gathers the parameters twice and reduces the gradients once: 3p, and with fp16 gradients 2p + p/2 = 5/6 of it. ZeRO-1
# and -2 send the new parameters once: 3/4. Of these payloads a library sends what its algorithm takes (`sent_share`).

ALIKE = tuple(key for key in KEYS if key not in ("allreduce", *BATCH_KEYS))  # the size of a batch sends no byte
COLUMNS = (
    "configuration",
    "series",
    "series_order",
    "framework",
    "zero_stage",
    "workers",
    "allreduce",
    "batch",
    *COMMUNICATION_COLUMNS,
    "communication_bytes",
    "algorithm_bytes",
    "sent_bytes",
    "communication_groups",
    "of_fp32",
    "bytes_per_parameter",
    "carrier",
    "overlap",
    "parity",
)


@once
def measured(results: Results, model: str) -> pd.DataFrame:
    """One row of COLUMNS for each configuration of one model that was measured with more than one worker.

    `of_fp32` is the ratio to the fp32 row of the same framework, otherwise the same; None where there is none.
    """
    parallel = [row for row in as_rows(results.frame_of(model)) if row["n"] and row["workers"] > 1]
    full: dict[tuple[Any, ...], int] = {}
    for row in parallel:
        if row["allreduce"] == "fp32" and known(row["communication_bytes"]):
            full.setdefault(values_of(row, ALIKE), int(row["communication_bytes"]))
    for row in parallel:
        sent, whole = row["communication_bytes"], full.get(values_of(row, ALIKE))
        row["of_fp32"] = sent / whole if known(sent) and whole else None
        row["bytes_per_parameter"] = sent / row["parameters"] if known(sent) and row["parameters"] else None
    frame = pd.DataFrame(parallel, columns=list(COLUMNS), dtype=object)
    return frame.sort_values(["series_order", "batch"], kind="stable", ignore_index=True)


@once
def listing(results: Results, model: str) -> Listing | None:
    """A row for each series; None where there is nothing to send."""
    sent = one_batch(measured(results, model))
    if sent.empty or sent.communication_bytes.isna().all():
        return None
    kinds = {
        name: name.removeprefix("communication_").removesuffix("_bytes").replace("_", "-")
        for name in COMMUNICATION_COLUMNS
        if (pd.to_numeric(sent[name]) > 0).any()
    }
    meshes = any(known(text) and text for text in sent.communication_groups)
    rows = [
        {
            "configuration (MB a worker and step)": series_name(row, results),
            **{kind: megabytes(row[name] or None) for name, kind in kinds.items()},
            "payload": megabytes(row["communication_bytes"]) or "not counted",
            "sent by algorithm": megabytes(row["algorithm_bytes"]),
            "by sockets": megabytes(row["sent_bytes"]),
            **({"by dimension of the mesh": shown(row["communication_groups"])} if meshes else {}),
            "of fp32": shown(row["of_fp32"], "{:.3f}"),
            "bytes per parameter": shown(row["bytes_per_parameter"], "{:.2f}"),
            "transport": shown(row["carrier"]),
            "overlap": percent(row["overlap"], 0),
        }
        for row in as_rows(sent)
    ]
    legend = [
        "Payload: whole tensors that a worker passes to collectives in one step, counted at the call. Sent by "
        "algorithm: what its library makes of them, mean over n workers: 2 (n-1)/n of an allreduce, (n-1)/n of others. "
        "Gloo reduce-scatters by an allreduce, so it sends twice as much for it as NCCL, and (n-1)(n+1)/n² of a "
        "reduce. By sockets: what its TCP sockets sent in that step; 0 where shared memory carried it.",
        "Of fp32: against fp32 gradients, otherwise the same. 16-bit gradients make 1/2 of an allreduce; 3/4 where "
        "fp32 parameters are sent once beside them (ZeRO-1, ZeRO-2, OSS), 5/6 where they are gathered twice (FSDP).",
    ]
    if sent.overlap.notna().any():
        legend.append(
            "Overlap: of the time with a collective in flight, the share in which the worker computed, in one step "
            "under torch's profiler; mean over workers. On GPUs the sharded are built to overlap; on a CPU few do."
        )
    if "communication_send_bytes" in kinds:
        legend.append("Send: a pipeline's activations and their gradients, sent to the next stage.")
    if sent.allreduce.isin(list(POWERSGD)).any():
        legend.append("PowerSGD of rank r: r (rows + columns) numbers of each matrix of gradients, and vectors whole.")
    if sent.framework.isin([name for name, table in FRAMEWORKS.items() if "sync_every" in table.axes]).any():
        legend.append("Workers that average weights every H steps: the bytes of one averaging over H.")
    return notes.model_listing(results, model, f"Communication of {model} by kind", rows, legend)


# Did gradients travel, and weights gather, as a fast run of this framework would?
#
# F3   Horovod without NCCL: gradients of GPUs went through the host, and 2 GPUs ran at half of 1
# F14  DDP on GPUs over gloo
# carriers   one framework by MPI over shared memory, another by Gloo over TCP: their ratio is one of carriers too
# overlap    on a CPU some frameworks compute while collectives are in flight, others wait: on GPUs all may overlap
# F24  FSDP without a wrapping policy: one unit, gathered whole at once, nothing overlapped

THROUGH_THE_HOST = ("gloo", "host", "mpi")
HOROVODS = "host"
OVERLAPS = 0.2  # of the time in flight; below, what computes meanwhile is copying


def slow_backends(evidence: Evidence) -> Iterator[Finding]:
    on_gpus = [row for row in evidence.on_gpus if not row["oversubscribe"]]  # NCCL refuses two workers on one GPU
    slow = [(row, by) for row in on_gpus for by in set(evidence.fact(row, "communicator")) if by in THROUGH_THE_HOST]
    for by, pairs in grouped(slow, lambda pair: pair[1]).items():
        rows = [row for row, _ in pairs]
        flaw = "F3" if by == HOROVODS else "F14"
        remedy = "Build Horovod with NCCL operations" if by == HOROVODS else "Choose the nccl backend"
        text = (
            f"Gradients of GPUs go through the host ({by}) instead of NCCL, and the way there and back is measured: "
            f"{findings.named(rows)}. {remedy}, and run these again."
        )
        yield findings.about(flaw, "GPUs that do not use NCCL", text, WRONG, rows)


def _compared(key: str, rows: Iterable[Row]) -> list[Row]:
    """Those of one model, batch and number of workers that do not all have the same `key`."""
    groups = grouped(rows, lambda row: (row["model"], row["batch"], row["workers"])).values()
    return [row for group in groups if len({row[key] for row in group}) > 1 for row in group]


def unlike_carriers(evidence: Evidence) -> Iterator[Finding]:
    """Frameworks that are compared, with gradients that go different ways."""
    rows = _compared("carrier", (row for row in evidence.rows if int(row["workers"]) > 1 and row["carrier"]))
    if not rows:
        return
    ways = "; ".join(
        f"{way} ({', '.join(dict.fromkeys(str(row['framework']) for row in by))})"
        for way, by in grouped(rows, lambda row: str(row["carrier"])).items()
    )
    text = (
        f"Gradients of compared frameworks travel by different transports: {ways}. A difference between them is one of "
        "transports too: compare like with like (controller: gloo makes Horovod use Gloo)."
    )
    yield findings.about("carriers", "Different transports", text, DOUBT, rows)


def unlike_overlap(evidence: Evidence) -> Iterator[Finding]:
    """Frameworks that are compared on a CPU, of which only some hide their communication."""
    on_cpu = (row for row in evidence.rows if row["device"] == "cpu" and row["overlap"] == row["overlap"])
    rows = _compared("framework", on_cpu)
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
    yield findings.about("overlap", "Unlike overlap", text, NOTE, rows)


def gathered_whole(evidence: Evidence) -> Iterator[Finding]:
    whole = [row for row in evidence.rows if 1 in evidence.fact(row, "units") and int(row["workers"]) > 1]
    if whole:
        text = (
            "Sharded as one unit, so all weights are gathered at once, little memory is saved and nothing overlaps: "
            f"{findings.named(whole)}. Gather it block by block: `wrapping_policy: blocks`; a model of your own names "
            "them in its Workload, as `blocks=(nn.Linear,)`."
        )
        yield findings.about("F24", "One unit, gathered whole", text, WRONG, whole)


VIEW = View(
    "What does a worker send?",
    (ModelTable("communication", listing, measured, "communication"),),
    detectors=(slow_backends, unlike_carriers, unlike_overlap, gathered_whole),
)
