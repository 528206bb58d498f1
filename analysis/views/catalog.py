"""All views, in the order of the page, and the findings of all: what is shown of a study is what stands here."""

from __future__ import annotations

from functools import partial

from analysis.execution import Salvage
from analysis.findings import DOUBT, Evidence, Finding, grouped, ordered
from analysis.frames.configurations import known
from analysis.frames.results import Results
from analysis.published import outcomes, ratios, references
from analysis.views import (
    allreduce_gain,
    attribution,
    averaging_rounds,
    batch_efficiency,
    bottleneck,
    communication,
    cost,
    epochs,
    maps,
    memory,
    network,
    next_steps,
    noise,
    pipelines,
    roofline,
    same_training,
    scaling,
    speedup,
    target,
    throughput,
    timing,
    training_flaws,
    transfer,
    work,
)
from analysis.views.timing import share
from analysis.views.view import Detector, View

VIEWS: tuple[View, ...] = (  # those without tables and figures stand where their findings are to be said
    work.VIEW,
    timing.VIEW,
    throughput.VIEW,
    speedup.VIEW,
    allreduce_gain.VIEW,
    noise.VIEW,
    bottleneck.VIEW,
    attribution.VIEW,
    bottleneck.REMEDIES,
    roofline.VIEW,
    memory.VIEW,
    memory.FRONTIER,
    scaling.RETURNS,
    cost.VIEW,
    scaling.LAWS,
    next_steps.VIEW,
    communication.VIEW,
    pipelines.VIEW,
    averaging_rounds.VIEW,
    epochs.VIEW,
    target.VIEW,
    same_training.VIEW,
    transfer.VIEW,
    batch_efficiency.VIEW,
    transfer.RECOGNITION,
    maps.VIEW,
    network.VIEW,
    references.VIEW,
    outcomes.VIEW,
    ratios.VIEW,
    training_flaws.VIEW,
    noise.DOUBTS,
    timing.RECORDS,
)


def all_findings(results: Results) -> list[Finding]:
    """Findings of the detectors of all views, the worst first. A detector that fails is a finding itself."""
    if not (results.configurations.n > 0).any():
        return []
    evidence, salvage = Evidence(results), Salvage()
    findings: list[Finding] = []
    for detector in (detector for view in VIEWS for detector in view.detectors):
        name = f"the detector of {detector.__name__.replace('_', ' ')}"
        findings += salvage.made(name, partial(_found, detector, evidence), [])
    return ordered((*findings, *map(_unchecked, salvage.lost)))


def _found(detector: Detector, evidence: Evidence) -> list[Finding]:
    return list(detector(evidence))


def _unchecked(why: str) -> Finding:
    text = f"{why}. What it looks for may be here unseen; please report it."
    return Finding("unchecked", "A check that failed", f"{text[0].upper()}{text[1:]}", DOUBT)


# Which of the published flaws (F1 to F28) the records of a study can show, and why not the others.
#
# A detector is silent both where a flaw is absent and where the study has nothing that could have it. Only the first is
# an argument for the study, so the report states the second.

PUBLISHED = tuple(f"F{number}" for number in range(1, 29))
OF_A_TRAINING = (*dict.fromkeys(flaw for flaw, *_ in training_flaws.LOOKS), "F23", "F26")  # the last two: work.py


def not_looked_for(evidence: Evidence) -> dict[str, str]:
    """Flaw -> why no detector could find it in these records; in the order of their numbers."""
    rows, details = evidence.rows, evidence.results.details
    alike = grouped(rows, lambda row: (row["model"], row["framework"], row["workers"])).values()
    instrumented = any(share(evidence, row) is not None for row in rows)
    looked: tuple[tuple[bool, str, tuple[str, ...]], ...] = (
        (any(any(evidence.fact(row, "training")) for row in rows), "no run was trained to a result", OF_A_TRAINING),
        (
            not details.epochs.empty or any(known(row["epochs"]) for row in rows),
            "no whole epochs were timed",
            ("F8", "F13"),
        ),
        (not details.stages.empty, "no pipeline was run", ("F15", "F16")),
        (bool(evidence.on_gpus), "no trial ran on several GPUs", ("F3", "F14")),
        (any(evidence.fact(row, "units") for row in rows), "no framework reported units of sharded weights", ("F24",)),
        (
            any(len({row["global_batch"] for row in ours}) > 1 for ours in alike),
            "nothing was run at several batch sizes",
            ("F4",),
        ),
        (len({row["framework"] for row in rows}) > 1, "one framework was run", ("F7", "F21")),
        (instrumented, "no step has its data time", ("F6",)),
        (bool(evidence.pairs) and instrumented, "no baseline has its data time", ("F28",)),
    )
    missing = {flaw: why for holds, why, flaws in looked if not holds for flaw in flaws}
    return {flaw: missing[flaw] for flaw in PUBLISHED if flaw in missing}


def looked_for_sentence(evidence: Evidence) -> str:
    """`16 of the 28 flaws of published studies were looked for. Not looked for: F3, F14 (no trial ran on ...); ...`"""
    missing = not_looked_for(evidence)
    counted = f"{len(PUBLISHED) - len(missing)} of the {len(PUBLISHED)} flaws of published studies were looked for"
    reasons = dict.fromkeys(missing.values())
    each = "; ".join(f"{', '.join(flaw for flaw in missing if missing[flaw] == why)} ({why})" for why in reasons)
    return f"{counted}.{f' Not looked for: {each}.' if each else ''}"
