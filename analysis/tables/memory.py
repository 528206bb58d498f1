"""Memory of a worker by kind, and what sharding saves of it, as a table."""

from __future__ import annotations

from analysis.frames import comparability
from analysis.frames.cache import once
from analysis.frames.over_ranks import MEMORY_COLUMNS
from analysis.frames.results import Results
from analysis.frames.rows import as_rows
from analysis.resources.memory import measured, one_batch
from analysis.tables import notes
from analysis.tables.layout import Listing
from analysis.text.number_formats import megabytes, whole_percent


@once
def listing(results: Results, model: str) -> Listing | None:
    """A row for each series, at one batch size where it was measured; None where memory was not counted."""
    ours = results.frame_of(model)
    kept = one_batch(measured(results, model))
    if kept.empty:
        return None
    signs = {row["configuration"]: comparability.sign_of_work(row) for row in results.rows_of(model)}
    header = ["configuration (MB a worker)", "batch", *(kind.removesuffix("_bytes") for kind in MEMORY_COLUMNS[:-1])]
    rows = [
        (
            f"{row['series']} {signs[row['configuration']]}".rstrip(),
            str(row["batch"]),
            *(megabytes(row[kind]) for kind in MEMORY_COLUMNS[:-1]),
            megabytes(row["peak_memory_bytes"]),
            megabytes(row["resident_bytes"]),
            *(whole_percent(row[name]) for name in ("saved", "theory")),
        )
        for row in as_rows(kept)
    ]
    references = [str(name) for name in kept.reference.dropna().unique()]
    against = f"against {references[0]}" if references else "no reference was measured"
    legend = [
        "Largest over the ranks. Peak: on a GPU the allocator's, on a CPU the sum of the kinds. Resident: the growth "
        "of the process beside them (in older records: all of it, libraries included).",
        f"Saved: of parameters + gradients + optimiser state, {against}. Theory: with n workers ZeRO-1 holds "
        "P + G + O/n, ZeRO-2 P + (G + O)/n, ZeRO-3 and FSDP (P + G + O)/n (Rajbhandari et al., arXiv 1910.02054). "
        "Counted between steps: parameters that FSDP gathers for a layer (ZeRO-3), or from forward to backward "
        "(ZeRO-2), are extra.",
    ]
    parity = [*comparability.sentences(ours, comparability.FAILED_SIGN), *comparability.checked(ours)]
    lines = [*parity, *notes.how_it_differs(ours), *legend]
    return Listing(
        f"Memory of {model} by kind ({results.heading})", (*header, "peak", "resident", "saved", "theory"),
        tuple(rows), (*lines, notes.source(results)),
    )  # fmt: skip
