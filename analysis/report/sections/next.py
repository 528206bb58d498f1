"""What next: laws over worker counts, what they say of more workers, what that costs, what to measure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pandas as pd

from analysis.frames.results import Results
from analysis.report.content import Bullets, Part, Section, Text, missing
from analysis.report.grids import of_listing
from analysis.report.material import Material
from analysis.scaling import frame
from analysis.scaling.fit import comparisons
from analysis.scaling.next import suggestions
from analysis.tables import scaling
from analysis.tables.layout import Listing

TABLES = {
    "extrapolation": (scaling.predictions, frame.predictions), "returns": (scaling.returns, frame.returns),
    "cost": (scaling.cost, frame.cost), "scaling-laws": (scaling.laws, frame.laws),
}  # fmt: skip


def section(material: Material) -> Section:
    results = material.results
    parts = material.parts("what is most worth measuring", lambda: _worth(results))
    parts += material.drawn("scaling")
    for name, (make, behind) in TABLES.items():
        parts += material.parts(f"table: {name}", partial(_table, name, make, behind, results))
    lead = (
        "Scaling laws, fitted to at least 4 worker counts and compared by their held-out error; predictions for "
        "worker counts that were not run; the configurations most worth measuring next."
    )
    return Section("next", "What next", lead, tuple(parts))


def _worth(results: Results) -> Iterator[Part]:
    worth = [f"{suggestion.rule}: {suggestion.sentence}" for suggestion in suggestions(results, comparisons(results))]
    if worth:
        yield Text("**Most worth measuring next**, in this order:")
        yield Bullets(tuple(worth))
    else:
        yield missing("Nothing to measure next", "no rule has a suggestion (docs/report.md)")


def _table(
    name: str, make: Callable[[Results], Listing | None], behind: Callable[[Results], pd.DataFrame], results: Results
) -> Iterator[Part]:
    frame = make(results)
    if frame is not None:
        yield of_listing(frame, f"{name}.csv", behind(results))
    elif name == "extrapolation":
        why = " ".join(scaling.declined(results)) or "nothing was measured with more than one worker."
        yield missing("No prediction for worker counts that were not run", why)
