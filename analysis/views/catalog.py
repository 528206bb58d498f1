"""All views, in the order of the page: what outputs, report and terminal show of a study is what stands here."""

from __future__ import annotations

from analysis.published import outcomes
from analysis.views import (
    allreduce_gain,
    averaging_rounds,
    batch_efficiency,
    bottleneck,
    communication,
    cost,
    epochs,
    maps,
    memory,
    network,
    next_measurement,
    noise,
    pipelines,
    reasons,
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
from analysis.views.view import Detector, Drawing, Gap, StudyTable, View

NO_BATCHES = "peak memory was not measured at several batch sizes"
BOTTLENECK = View(
    "What holds each configuration back?",
    (
        StudyTable(
            "bottleneck", reasons.reasons_bottleneck, reasons.bottleneck, "Bottlenecks", "why",
            Gap("Bottlenecks: not known", "no configuration has phases, or a failure, to tell by"),
        ),
    ),
    (Drawing("steps", bottleneck.draw, several=True, section="why", beside="bottleneck"),),
)  # fmt: skip
ATTRIBUTION = View(
    "Where did the efficiency go?",
    (
        StudyTable(
            "attribution", reasons.reasons_attribution, reasons.attribution, "Lost efficiency", "why",
            Gap(
                "Lost efficiency: not known",
                "no configuration of more than one worker has an efficiency and phases",
            ),
        ),
    ),
    (
        Drawing(
            "waterfall", reasons.draw, several=True,
            gap=Gap("No waterfall of efficiency", "phases of a configuration with a speed-up were not measured"),
        ),
    ),
)  # fmt: skip
REMEDIES = View(
    "What would help?",
    (
        StudyTable(
            "remedies", reasons.reasons_remedy, reasons.remedy, "What would help", "why",
            Gap("What would help: not known", "no configuration has phases to tell by"),
        ),
    ),
)  # fmt: skip
UTILISATION = View(
    "How much of the device is used?",
    (
        StudyTable(
            "utilisation", reasons.reasons_utilisation, reasons.utilisation, "Model FLOP/s and utilisation", "why",
            Gap("Model FLOP/s and utilisation: not known", "no record counts its FLOPs"),
        ),
    ),
    (Drawing("roofline", roofline.draw, section="why", beside="utilisation"),),
)  # fmt: skip
FRONTIER = View(
    "Which batch sizes fit into memory?",
    (
        StudyTable(
            "frontier", reasons.reasons_frontier, reasons.frontier, "Memory against batch", "why",
            Gap("Memory against batch: not known", NO_BATCHES),
        ),
    ),
    (Drawing("frontier", memory.draw, gap=Gap("No figure of memory against batch", NO_BATCHES)),),
)  # fmt: skip
RETURNS = View(
    "What does another worker bring?",
    (StudyTable("returns", scaling.returns_listing, scaling.returns_table, section="next"),),
)
COST = View(
    "What does speed cost?",
    (StudyTable("cost", cost.listing, cost.table, section="next"),),
    (
        Drawing(
            "pareto", cost.draw,
            gap=Gap("No figure of cost against time", "it needs two comparable configurations"),
        ),
    ),
)  # fmt: skip
LAWS = View(
    "Which law does throughput follow as workers are added?",
    (StudyTable("scaling-laws", scaling.laws_listing, scaling.laws_table, section="next"),),
    (Drawing("scaling-law", scaling.draw, several=True, section="next"),),
)
NEXT = View("What is worth measuring next?", (StudyTable("next", next_measurement.listing, section=""),))
TARGET = View(
    "How soon does a training reach its target?",
    (
        StudyTable("target", target.listing, target.trained_configurations),
        StudyTable("training", target.resources_listing, target.resources_table),
    ),
    (Drawing("target", target.draw, several=True, rank=1),),
)
SAME_TRAINING = View(
    "Is the same training the same in every framework?",
    (StudyTable("target-pairs", same_training.listing, same_training.table),),
)
TRANSFER = View("Does pre-training help?", (StudyTable("transfer", transfer.listing, transfer.table),))
BATCH_EFFICIENCY = View(
    "What does a larger batch cost in samples?",
    (StudyTable("efficiency", batch_efficiency.listing, batch_efficiency.table),),
    (Drawing("efficiency", batch_efficiency.draw, several=True, rank=1),),
)
RECOGNITION = View(
    "What are surgical triplets recognised by?",
    (StudyTable("recognition", transfer.recognition_listing, transfer.recognition_table),),
)
MAPS = View(
    "What does a model look at?",
    (StudyTable("maps", maps.listing, maps.table),),
    (Drawing("maps", maps.draw_maps, True, rank=-1), Drawing("pointing", maps.draw_pointing, True, rank=-1)),
    (Detector(maps.maps_of_something_else, 12),),
)
PUBLISHED = View(
    "What did published trainings come to?",
    (
        StudyTable(
            "published-outcomes", outcomes.listing, outcomes.table, section="published"
        ),
    ),
)  # fmt: skip

VIEWS: tuple[View, ...] = (
    throughput.VIEW,
    speedup.VIEW,
    allreduce_gain.VIEW,
    noise.VIEW,
    BOTTLENECK,
    ATTRIBUTION,
    REMEDIES,
    UTILISATION,
    memory.VIEW,
    FRONTIER,
    RETURNS,
    COST,
    LAWS,
    NEXT,
    communication.VIEW,
    pipelines.VIEW,
    averaging_rounds.VIEW,
    epochs.VIEW,
    TARGET,
    SAME_TRAINING,
    TRANSFER,
    BATCH_EFFICIENCY,
    RECOGNITION,
    MAPS,
    network.VIEW,
    PUBLISHED,
    work.VIEW,
    timing.VIEW,
    training_flaws.VIEW,
)
