"""What a worker hands to collectives in one step, by kind, as a table."""

from __future__ import annotations

import pandas as pd

from analysis.frames import comparability
from analysis.frames.baseline import known
from analysis.frames.cache import once
from analysis.frames.over_ranks import COMMUNICATION_COLUMNS
from analysis.frames.results import Results
from analysis.frames.rows import as_rows
from analysis.resources.communication import measured
from analysis.resources.memory import one_batch
from analysis.tables import notes
from analysis.tables.layout import Listing
from analysis.text.number_formats import megabytes


@once
def listing(results: Results, model: str) -> Listing | None:
    """A row for each series; None where there is nothing to send."""
    ours = results.frame_of(model)
    sent = one_batch(measured(results, model))
    if sent.empty or sent.communication_bytes.isna().all():
        return None
    signs = {row["configuration"]: comparability.sign_of_work(row) for row in results.rows_of(model)}
    kinds = [name for name in COMMUNICATION_COLUMNS if (pd.to_numeric(sent[name]) > 0).any()]
    header = ["configuration (MB a worker and step)"]
    header += [name.removeprefix("communication_").removesuffix("_bytes").replace("_", "-") for name in kinds]
    rows = [
        (
            f"{row['series']} {signs[row['configuration']]}".rstrip(),
            *(megabytes(row[kind]) if known(row[kind]) and row[kind] else "" for kind in kinds),
            megabytes(row["communication_bytes"]) or "not counted",
            f"{row['of_fp32']:.3f}" if known(row["of_fp32"]) else "",
            f"{row['bytes_per_parameter']:.2f}" if known(row["bytes_per_parameter"]) else "",
            row["carrier"] if known(row["carrier"]) else "",
            f"{100 * row['overlap']:.0f} %" if known(row["overlap"]) else "",
        )
        for row in as_rows(sent)
    ]
    legend = [
        "Whole tensors that a worker passes to collectives in one step, counted at the call. Bytes on the wire differ: "
        "a ring of n workers moves 2 (n-1)/n of an allreduce, (n-1)/n of the others.",
        "Of fp32: against fp32 gradients, otherwise the same. 16-bit gradients make 1/2 of an allreduce; 3/4 where "
        "fp32 parameters are sent once beside them (ZeRO-1, ZeRO-2, OSS), 5/6 where they are gathered twice (FSDP).",
    ]
    if sent.overlap.notna().any():
        legend.append(
            "Overlap: of the time with a collective in flight, the share in which the worker computed, in one step "
            "under torch's profiler; mean over workers. On GPUs the sharded are built to overlap; on a CPU few do."
        )
    if "communication_send_bytes" in kinds:
        legend.append("Send: a pipeline's activations and their gradients, sent to the neighbouring stage.")
    parity = [*comparability.sentences(ours, comparability.FAILED_SIGN), *comparability.checked(ours)]
    lines = [*parity, *notes.how_it_differs(ours), *legend]
    return Listing(
        f"Communication of {model} by kind ({results.heading})",
        (*header, "sum", "of fp32", "bytes per parameter", "carried by", "overlap"), tuple(rows),
        (*lines, notes.source(results)),
    )  # fmt: skip
