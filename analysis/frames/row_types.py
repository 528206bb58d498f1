"""Types of the rows of results.csv and configurations.csv, with the columns that are read by name.

columns.py declares every column. An unknown value is None in a row of as_rows (rows.py), but NaN in a column of floats.
"""

from __future__ import annotations

from typing import TypedDict


class TrialKeys(TypedDict):
    """Keys of a study file (scaling_study.trial) that a trial and its repeats have in common. None: has none."""

    framework: str
    model: str
    batch_per_worker: int
    allreduce: str
    precision: str
    workers: int
    hosts: int | None
    launcher: str
    controller: str | None
    device: str
    cores_per_worker: int | None
    oversubscribe: bool
    data: str
    image_size: int | None
    weights: str | None
    freeze: str | None
    learning_rate: float | None
    part_learning_rates: str | None
    accumulation: int
    compile: bool
    zero_stage: int | None
    schedule: str | None
    stages: int | None
    virtual_stages: int | None
    micro_batches: int | None
    replicas: int | None
    buffers: str | None
    stage_cut: str | None
    bucket_bytes: int | None
    fusion_bytes: int | None
    cycle_seconds: float | None
    target_batch_size: int | None
    matchmaking_seconds: float | None
    averaging_timeout_seconds: float | None
    updates: str | None
    collective: str | None
    seed: int
    epochs: int | None
    train_target: str | None
    train_patience: int | None
    find: str | None
    warm: bool | None
    machine: str
    global_batch: int


class Counted(TypedDict):
    """Bytes and parameters of a worker; the largest over ranks and repeats. None where they were not counted."""

    parameters: int | None
    allreduce_bytes: int | None
    communication_bytes: int | None
    communication_send_bytes: int | None
    peak_memory_bytes: int | None
    buffers_bytes: int | None
    activations_bytes: int | None
    resident_bytes: int | None
    parameters_bytes: int | None
    gradients_bytes: int | None
    optimizer_bytes: int | None


class Means(TypedDict):
    """Means over ranks and repeats; NaN where they were not measured."""

    tokens_per_second: float
    step_seconds_mean: float
    data_seconds: float
    forward_seconds: float
    communication_seconds: float
    matchmaking_blocked_seconds: float
    averaging_blocked_seconds: float
    achieved_over_target: float
    overlap: float
    gpu_utilization_percent: float
    energy_joules: float
    loss_first: float


class Named(TypedDict):
    """As much of a configuration's row as names it to a reader."""

    configuration: str
    model: str
    series: str
    batch: int


class Outcome(TypedDict):
    """How a trial ended, or a configuration of which no repeat is ok."""

    status: str
    reason: str


class Judged(TypedDict):
    """Parity of a configuration, and the reason why its speed is not comparable, if so (configurations.py)."""

    parity: str | None
    not_comparable: str


class ConfigurationRow(TrialKeys, Counted, Means):
    """One configuration: configurations.csv, and by what it is shown (results.add)."""

    study: str
    configuration: str
    status: str
    reason: str
    repeats: int
    n: int
    planned: int
    samples_per_second: float
    interval_low: float
    interval_high: float
    relative_half_width: float
    repeats_needed: int | None
    speedup: float
    speedup_low: float
    speedup_high: float
    efficiency: float
    baseline: str | None
    speedup_reason: str
    parity: str | None
    not_comparable: str
    oversubscribed: bool
    carrier: str
    data_source: str
    started_at: str
    failures: str
    repeat_values: str
    repeat_launches: str
    launch_spread: float
    launch_freedom: float
    launch_members: int | None
    series: str
    series_order: int
    batch: int


class Epoch(ConfigurationRow):
    """A configuration that ran epochs, with what its last one took (views/epochs.py), before it is compared."""

    steps: int
    samples: int
    training_seconds: float
    running_seconds: float
    steady_seconds: float
    unsteady: float
    epoch_repeats: int
    samples_per_epoch_second: float
    used_learning_rate: float | None
    values: list[float]  # running seconds of each repeat


class ComparedEpoch(Epoch, total=False):
    """An epoch with its ratios to the baseline's: a row of tables/epochs. Missing keys are unknown."""

    epoch_baseline: str | None
    epoch_ratio: float | None
    epoch_ratio_low: float | None
    epoch_ratio_high: float | None
    equal_work_ratio: float | None
    same_batch_baseline: str | None
    same_batch_ratio: float | None
    why_no_ratio: str
    flags: str


class Pipeline(ConfigurationRow):
    """A configuration whose workers hold stages of one model: a row of tables/pipeline. NaN or None: not known."""

    bubble: float
    bubble_low: float
    bubble_high: float
    theory: float | None
    theory_formula: str
    theory_why: str
    replay_equal: float
    replay_measured: float
    added_by_cut: float
    added_by_transfers: float
    replay_why: str | None
    computing: float | None
    cap: float | None
    most_speedup: float | None
    busiest_worker: int | None
    time_shares: str | None
    parameter_shares: str | None
    layers: str


class TrialRow(TrialKeys, Counted, Means):
    """One trial: results.csv. Its means are over ranks."""

    study: str
    trial: str
    configuration: str
    repeat: int
    status: str
    reason: str
    samples_per_second: float
    interval_low: float
    interval_high: float
    steps: int | None
    step_seconds_median: float
    samples_seen: int | None
    rounds_failed: int | None
    carrier: str | None
    data_source: str | None
    parity: str | None
    started_at: str | None
    launch: str | None
    planned_repeats: int | None
    busy_elsewhere_cores: float
    max_batch: int | None
