"""What a 16-bit allreduce gains over fp32: the ratio of throughputs, everything else equal, with its interval.

"No difference" is a result: the 95 % interval of the ratio contains 1, so the study cannot tell the two apart.
"""

from __future__ import annotations

from typing import Any, cast

import pandas as pd

from analysis.frames import outcomes
from analysis.frames.baseline import values_of
from analysis.frames.cache import once
from analysis.frames.configurations import KEYS, over
from analysis.frames.results import Results
from analysis.frames.row_types import ConfigurationRow
from analysis.frames.rows import as_rows

REFERENCE = "fp32"
COMPARED = ("fp16", "bf16")
FASTER, SLOWER, NO_DIFFERENCE, NO_INTERVAL = "faster", "slower", "no difference", "no interval"
NOT_COMPARABLE = "not comparable"
COLUMNS = (
    *(key for key in KEYS if key != "allreduce"),
    *("allreduce", "gain", "gain_low", "gain_high", "n", "verdict", "configuration", "reference"),
)
OF_EACH = ("configuration", "status", "reason", "not_comparable", "repeat_values", "planned")


@once
def gains(results: Results) -> pd.DataFrame:
    """That of a study."""
    return table(results.configurations)


def table(configurations: pd.DataFrame) -> pd.DataFrame:
    """One row for each pair of configurations that differ in allreduce precision only.

    `gain` is the compared throughput over that of fp32, with its bounds; `n` the smaller number of repeats.
    `verdict` is faster, slower, "no difference", "no interval" (fewer than 3 repeats), "not comparable", or, where one
    of the two was not measured, which and why: "fp16: oom".
    """
    rows = cast("list[ConfigurationRow]", as_rows(configurations[[*KEYS, *OF_EACH]]))
    alike = [key for key in KEYS if key != "allreduce"]
    references: dict[tuple[Any, ...], ConfigurationRow] = {}
    for row in rows:
        if row["allreduce"] == REFERENCE:
            references.setdefault(values_of(row, alike), row)
    compared = [(row, references.get(values_of(row, alike))) for row in rows if row["allreduce"] in COMPARED]
    pairs = [_pair(row, reference) for row, reference in compared if reference is not None]
    kinds: dict[str, Any] = {key: configurations[key].dtype for key in (*alike, "allreduce", "configuration")}
    kinds |= {"reference": "string", "verdict": "string", "n": "Int64"}
    frame = pd.DataFrame(pairs, columns=list(COLUMNS), dtype=object)
    return frame.astype({name: kinds.get(name, "float64") for name in COLUMNS})


def _pair(row: ConfigurationRow, reference: ConfigurationRow) -> dict[str, Any]:
    pair: dict[str, Any] = dict(zip(KEYS, values_of(row, KEYS), strict=True))
    pair |= {"configuration": row["configuration"], "reference": reference["configuration"]}
    missing = [f"{side['allreduce']}: {outcomes.word(side)}" for side in (reference, row) if side["status"] != "ok"]
    if missing:
        return pair | {"n": 0, "verdict": ", ".join(missing)}
    gain = over(row, reference)
    if row["not_comparable"] or reference["not_comparable"]:
        return pair | {"n": gain.n, "verdict": NOT_COMPARABLE}
    if gain.low is None or gain.high is None:
        verdict = NO_INTERVAL
    elif gain.low <= 1 <= gain.high:
        verdict = NO_DIFFERENCE
    else:
        verdict = FASTER if gain.mean > 1 else SLOWER
    return pair | {"gain": gain.mean, "gain_low": gain.low, "gain_high": gain.high, "n": gain.n, "verdict": verdict}
