"""The axes that many frameworks share: trial keys, and the values that each may take. Static data.

a process < what trains < on one host < over several hosts        a pipeline: nearly that, and where it is cut
"""

from __future__ import annotations

from collections.abc import Mapping

from scaling_study.models import MODEL_NAMES
from scaling_study.parts import BACKBONE, NONE
from scaling_study.targets import TRAIN

Axes = Mapping[str, tuple[object, ...]]  # (): any value of the right type

PROCESS_AXES: Axes = {"device": (), "cores_per_worker": (), "allocator": ("fixed", "system")}
TRAINING_AXES: Axes = {
    "model": MODEL_NAMES,
    "batch_per_worker": (),
    "precision": ("fp32", "bf16", "fp16", "fp64"),
    **PROCESS_AXES,
    "data": (
        *("auto", "cifar10", "cola", "wikitext2", "wikitext2_bpe", "images"),
        *("cholect45", "surgical_scenes", "synthetic"),
    ),
    "input": ("memory", "torchvision", "dali"),
    "damaged_images": ("stop", "replace"),
    "image_size": (),
    "image_width": (),
    "memory_format": ("contiguous", "channels_last"),
    "sequence_length": (),
    "padding": ("fixed", "dynamic"),
    "weights": (),
    "freeze": (NONE, BACKBONE),
    "learning_rate": (),
    "part_learning_rates": (),
    "accumulation": (),
    "compile": (True, False),
    "seed": (),
    **dict.fromkeys(("epochs", "warmup_epochs", "find", "dropout"), ()),
    **dict.fromkeys((f"train_{name}" for name in TRAIN), ()),
}
ONE_HOST_AXES: Axes = {**TRAINING_AXES, "workers": (), "oversubscribe": (True, False)}
PARALLEL_AXES: Axes = {**ONE_HOST_AXES, "hosts": ()}
BUFFERS = ("local", "synced")  # synced: rank 0's are broadcast before every forward, which communicates then
DDP_AXES: Axes = {"bucket_bytes": (), "buffers": BUFFERS, "tuned_for": ("speed",)}  # what is fastest keeps least too
FUSION_AXES: Axes = {"fusion_bytes": (), "cycle_seconds": ()}  # of Horovod
TUNED = ("speed", "memory")
WRAPS = ("blocks", "none")  # none: one unit, gathered whole (F24)
WIRES = ("none", "fp32", "fp16", "bf16")
NO_FP64 = ("fp32", "bf16", "fp16")
UPDATES = ("synchronous", "delayed", "local")  # of peers; only the first steps as DDP does
# Peers report batch after batch until all of them together have the target: that is accumulation.
NOT_OF_PEERS = ("accumulation", "compile", "epochs", "warmup_epochs")
PEER_AXES: Axes = {
    **{key: values for key, values in PARALLEL_AXES.items() if key not in NOT_OF_PEERS},
    "precision": ("fp32", "bf16", "fp64"),
    "find": ("parity",),
    "updates": UPDATES,
    **dict.fromkeys(
        ("target_batch_size", "matchmaking_seconds", "averaging_timeout_seconds", "average_state_every"), ()
    ),
}
# A pipeline's micro-batches take the place of accumulation, and shapes never change on their way from stage to stage.
PIPELINE_AXES: Axes = {
    **{key: values for key, values in PARALLEL_AXES.items() if key not in ("accumulation", "compile")},
    "precision": ("fp32", "bf16", "fp64"),
    "padding": ("fixed",),
    "find": ("parity",),
    "stages": (),
    "stage_cut": (),
}
SCHEDULE_AXES: Axes = {"micro_batches": (), "virtual_stages": (), "replicas": ()}
