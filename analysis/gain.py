"""What a 16-bit allreduce gains over fp32: the ratio of throughputs, everything else equal, with its interval.

"No difference" is a result: the 95 % interval of the ratio contains 1, so the study cannot tell the two apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from analysis import outcomes
from analysis.baseline import same
from analysis.configurations import KEYS, values
from scaling_study.intervals import ratio

REFERENCE = "fp32"
COMPARED = ("fp16", "bf16")
FASTER, SLOWER, NO_DIFFERENCE, NO_INTERVAL = "faster", "slower", "no difference", "no interval"
NOT_COMPARABLE = "not comparable"
COLUMNS = (
    *(key for key in KEYS if key != "allreduce"),
    *("allreduce", "gain", "gain_low", "gain_high", "n", "verdict", "configuration", "reference"),
)


def table(configurations: pd.DataFrame) -> pd.DataFrame:
    """One row for each pair of configurations that differ in allreduce precision only.

    `gain` is the compared throughput over that of fp32, with its bounds; `n` the smaller number of repeats.
    `verdict` is faster, slower, "no difference", "no interval" (fewer than 3 repeats), "not comparable", or, where one
    of the two was not measured, which and why: "fp16: oom".
    """
    rows = configurations.to_dict("records")
    references = [row for row in rows if row["allreduce"] == REFERENCE]
    alike = [key for key in KEYS if key != "allreduce"]
    pairs = []
    for row in rows:
        if row["allreduce"] in COMPARED:
            for reference in references:
                if all(same(row[key], reference[key]) for key in alike):
                    pairs.append(_pair(row, reference))
                    break
    kinds: dict[str, Any] = {key: configurations[key].dtype for key in (*alike, "allreduce", "configuration")}
    kinds |= {"reference": "string", "verdict": "string", "n": "Int64"}
    frame = pd.DataFrame(pairs, columns=list(COLUMNS), dtype=object)
    return frame.astype({name: kinds.get(name, "float64") for name in COLUMNS})


def _pair(row: Mapping[Any, Any], reference: Mapping[Any, Any]) -> dict[str, Any]:
    pair = {key: row[key] for key in (*KEYS, "configuration")} | {"reference": reference["configuration"]}
    missing = [f"{side['allreduce']}: {outcomes.word(side)}" for side in (reference, row) if side["status"] != "ok"]
    if missing:
        return pair | {"n": 0, "verdict": ", ".join(missing)}
    gain = ratio(values(row), values(reference))
    if row["not_comparable"] or reference["not_comparable"]:
        return pair | {"n": gain.n, "verdict": NOT_COMPARABLE}
    if gain.low is None or gain.high is None:
        verdict = NO_INTERVAL
    elif gain.low <= 1 <= gain.high:
        verdict = NO_DIFFERENCE
    else:
        verdict = FASTER if gain.mean > 1 else SLOWER
    return pair | {"gain": gain.mean, "gain_low": gain.low, "gain_high": gain.high, "n": gain.n, "verdict": verdict}
