"""Did rows that are compared do the same work? Models, samples, optimiser steps, skipped steps, speed-ups above n."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

from analysis import findings
from analysis.findings import DOUBT, MOST_NAMES, NOTE, WRONG, Evidence, Finding, Row, grouped, simultaneous
from analysis.frames import configurations
from analysis.frames.configurations import known, over, trains, unlike_work, values_of
from analysis.frames.rows import as_rows
from analysis.frames.study import workers_text
from analysis.frames.trials import NOT_CHECKED
from analysis.views.same_training import RECIPE
from analysis.views.view import View
from scaling_study.frameworks import COMMAND
from scaling_study.models import MODELS
from scaling_study.records.schema import DOUBT as DOUBTED
from scaling_study.stats.intervals import FEWEST_REPEATS

# Did rows that are compared do the same work? F9: 2,929 batches an epoch against 50, and "over 10x".
#
# A throughput counts samples, so it cannot be fooled by shorter epochs; but whoever multiplies it by an epoch can, and
# two rows whose epochs are unlike read unlike data.


def miscounted_samples(evidence: Evidence) -> Iterator[Finding]:
    """Trials whose samples are not their steps times their global batch. A round of peers has what they gave it.

    A search for the largest batch has the steps of what it found, not of where it began. Samples of a command are
    counted step by step: the last batch of an epoch may be shorter.
    """
    trials = evidence.runs
    seen = trials[(trials.status == "ok") & trials.samples_seen.notna() & trials.steps.notna()]
    seen = seen[seen.achieved_over_target.isna() & seen["find"].isna() & (seen.framework != COMMAND)]
    wrong = seen[seen.samples_seen != seen.steps * seen.global_batch]
    if wrong.empty:
        return
    first, rows = wrong.iloc[0], evidence.among({*wrong.configuration})
    text = (
        f"{findings.count(len(wrong), 'trial')} did not see steps x global batch samples: {first.trial} saw "
        f"{first.samples_seen:,} in {first.steps:,} steps of {first.global_batch:,} ({findings.named(rows)}). Compare "
        "them with nothing until their script counts rightly."
    )
    yield findings.about("F9", "Samples that do not add up", text, WRONG, rows)


def unlike_epochs(evidence: Evidence) -> Iterator[Finding]:
    """A tail that fills no global batch is left out of an epoch: that much may differ."""
    for rows in grouped(evidence.rows, _same_data).values():
        sizes = {id(row): max(evidence.fact(row, "samples_per_epoch"), default=0) for row in rows}
        counted = sorted((row for row in rows if sizes[id(row)]), key=lambda row: sizes[id(row)])
        if not counted:
            continue
        least, most = counted[0], counted[-1]
        if sizes[id(most)] - sizes[id(least)] >= max(int(row["global_batch"]) for row in counted):
            text = (
                f"An epoch of {findings.named([least])} has {sizes[id(least)]:,} samples, one of "
                f"{findings.named([most])} {sizes[id(most)]:,}: they "
                "are not the same work. Compare samples per second, never seconds an epoch."
            )
            yield findings.about("F9", "Epochs of unlike work", text, WRONG, [least, most])


def unlike_data(evidence: Evidence) -> Iterator[Finding]:
    """Real and generated data, or two data sets, in rows that are otherwise alike."""
    for model, rows in grouped(evidence.rows, lambda row: str(row["model"])).items():
        named = [row for row in rows if known(row["data_source"]) and row["data_source"]]
        sources = grouped(named, lambda row: str(row["data_source"]).split()[0].rstrip(":;,"))
        asked = {row["data"] for row in named}
        if len(sources) > 1 and len(asked) < len(sources):  # what the study itself compares is no accident
            each = "; ".join(f"{name} in {findings.named(of)}" for name, of in sorted(sources.items()))
            text = f"Rows of {model} read unlike data: {each}. Run them on one data set."
            yield findings.about("F9", "Unlike data", text, WRONG, named)


def _same_data(row: Row) -> tuple[object, ...]:
    """Values that decide how many samples an epoch has; a training to a result leaves out its validation samples."""
    keys = ("model", "data", "sequence_length", "image_size", "image_width", "train_validation")
    return (*values_of(row, keys), trains(row))


# Was the thing trained that its name says? Parameter counts, variants, lost weights, and what parity said.
#
# F5   a table of "ResNet-50" that was ResNet-18: two models with one parameter count, or one model with two
# F10  a variant beside its original, as if it were it
# F15  weights that were in no stage of a pipeline, and so were never trained


def parity_verdicts(evidence: Evidence) -> Iterator[Finding]:
    """Findings of configurations that train something else, and of those whose parity nobody checked."""
    failed = [row for row in evidence.rows if configurations.failed(row)]
    for fault, rows in grouped(failed, lambda row: str(row["parity"])).items():
        faults = f"{' '.join(fault.split())} ({findings.named(rows)})"
        text = f"Does not train what one process would: {faults}. Compare its speed with nothing."
        yield findings.about("parity", "Parity failed", text, WRONG, rows)
    if unknown := [row for row in evidence.rows if row["parity"] == NOT_CHECKED]:
        text = (
            "No parity check shows that these train the same as one process: "
            f"{findings.named(unknown, evidence.rows)}. Run scaling-study parity STUDY."
        )
        yield findings.about("parity", "Parity not checked", text, DOUBT, unknown)


def several_parameter_counts(evidence: Evidence) -> Iterator[Finding]:
    """One model, several parameter counts. Those of a head that fits its data differ with the data, and with the size
    of frames; what a trial freezes is said by it."""
    counted = [row for row in evidence.rows if known(row["parameters"])]
    for (model, *_), rows in grouped(counted, _same_layers).items():
        counts = grouped(rows, lambda row: row["parameters"] or 0)
        if len(counts) > 1:
            each = "; ".join(f"{count:,} in {findings.named(of)}" for count, of in sorted(counts.items()))
            text = (
                f"Rows of {model} have unlike parameter counts, so they train unlike models: {each}. Find out which is "
                f"{model}, and compare the others with nothing."
            )
            yield findings.about("F5", "One model, several parameter counts", text, WRONG, rows)


def _same_layers(row: Row) -> tuple[object, ...]:
    """Values that decide how many of a model's parameters are trained."""
    keys = ("image_size", "image_width", "freeze", "classes", "vocabulary")
    return (row["model"], row["data_source"], *values_of(row, keys))


def one_parameter_count(evidence: Evidence) -> Iterator[Finding]:
    """Several models, one parameter count."""
    counted = [row for row in evidence.rows if known(row["parameters"])]
    for count, rows in grouped(counted, lambda row: row["parameters"] or 0).items():
        pairs = itertools.combinations(sorted({str(row["model"]) for row in rows}), 2)
        names = list(dict.fromkeys(name for pair in pairs if not _related(*pair) for name in pair))
        if names:
            more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
            models = ", ".join(names[:MOST_NAMES]) if more else " and ".join(names)
            text = (
                f"{models}{more} have {count:,} parameters each: very probably they are one model under several names. "
                "Look at what their scripts build."
            )
            ours = [row for row in rows if row["model"] in names]
            yield findings.about("F5", "Several models, one parameter count", text, WRONG, ours)


def _related(a: str, b: str) -> bool:
    """True where one model is known to be a variant of the other."""
    return any(two in (MODELS[first].like, MODELS[first].smooth) for first, two in ((a, b), (b, a)) if first in MODELS)


def variants(evidence: Evidence) -> Iterator[Finding]:
    models = grouped(evidence.rows, lambda row: str(row["model"]))
    for name, rows in models.items():
        about = MODELS.get(name)
        if about is not None and about.like in models:
            departs = about.departs.replace(" (F10)", "")
            text = f"{name} is a variant of {about.like} and not it: {departs}. Quote its speed for itself alone."
            yield findings.about("F10", "A variant beside its original", text, DOUBT, rows)


def lost_weights(evidence: Evidence) -> Iterator[Finding]:
    """The stages of each rank's pipeline, together, against the whole model."""
    stages = evidence.results.details.stages
    if stages.empty:
        return
    held = stages.drop_duplicates(["configuration", "stage"]).groupby("configuration").parameters.sum().to_dict()
    for row in evidence.rows:
        have = held.get(row["configuration"])
        if have is not None and known(row["parameters"]) and have < row["parameters"]:
            missing = int(row["parameters"]) - int(have)
            text = (
                f"{missing:,} of {row['parameters']:,} parameters are in no stage: they are never trained "
                f"({findings.named([row])}). Cut the model so that each is in one."
            )
            yield findings.about("F15", "Weights that no stage has", text, WRONG, [row])


# Another batch at the same learning rate is another training: fewer optimiser steps, each no longer.
#
#     F13  batch 128 a GPU: 391 steps an epoch on one, 98 on four; of measured epochs, epochs.py says it too
#     F19  the global batch changes with the number of GPUs, the learning rate does not        F26  likewise, doubled
#     F23  strategies compared by accuracy at 1280 and 8192 samples a step, at one rate
#
# For a speed it does not matter, so of timed runs it is a note. Of runs that were trained to a result it decides it.
# There the reverse is found too: a rate that was multiplied by the workers although the global batch is the same. A
# rule that scales the rate with the global batch is the remedy: other batches then have other rates, the same batch
# one.

TIMED = "Samples per second do not depend on it; compare no losses and no accuracies."
TRAINED = "Scale the rate with the batch, or hold the global batch."


def unequal_steps(evidence: Evidence) -> Iterator[Finding]:
    seen = {row["configuration"]: set(evidence.fact(row, "learning_rate")) for row in evidence.rows}
    rates = {name: of.pop() for name, of in seen.items() if len(of) == 1}
    rows = evidence.among(rates)
    trained = _trained(evidence, rows)
    timed = [row for row in rows if row not in trained]
    yield from _with_workers(trained, rates, trained=True)
    yield from _with_workers(timed, rates, trained=False)
    yield from _other_rates(trained, rates)
    yield from _between_strategies(trained, rates)


def _with_workers(rows: list[Row], rates: Mapping[str, float], trained: bool) -> Iterator[Finding]:
    """One model, one batch a worker, one rate, several global batches: of rows that are all trained, or all timed."""
    for (model, rate), ours in grouped(rows, lambda row: (row["model"], rates[row["configuration"]])).items():
        by_batch = grouped(ours, lambda row: row["batch_per_worker"]).values()
        grew = [of for of in by_batch if len({row["global_batch"] for row in of}) > 1]
        if not grew:
            continue
        each = [sorted({int(row["global_batch"]) for row in of}) for of in grew]
        batches = ", ".join(dict.fromkeys(" and ".join(f"{batch:,}" for batch in sizes) for sizes in each))
        doubled = all(sizes == [sizes[0], 2 * sizes[0]] for sizes in each)
        concerned = [row for of in grew for row in of]
        flaw, severity = ("F26" if doubled else "F19", WRONG) if trained else ("F19", NOTE)
        if any(known(row["epochs"]) for row in concerned):
            flaw, severity = ("F13", DOUBT if severity == NOTE else severity)
        text = (
            f"{model} has global batches of {batches} samples at one learning rate ({rate:g}): so many fewer optimiser "
            f"steps in an epoch are another training ({findings.named(concerned)}). {TRAINED if trained else TIMED}"
        )
        yield findings.about(flaw, "More samples a step, the same learning rate", text, severity, concerned)


def _other_rates(trained: list[Row], rates: Mapping[str, float]) -> Iterator[Finding]:
    """Findings of trained runs with one recipe and global batch, but unlike learning rates."""
    for ours in grouped(trained, lambda row: tuple(map(str, values_of(row, RECIPE)))).values():
        by_rate = grouped(ours, lambda row: f"{rates[row['configuration']]:.6g}")
        if len(by_rate) > 1:
            each = "; ".join(f"{rate} in {findings.named(of)}" for rate, of in by_rate.items())
            text = (
                f"One recipe at one global batch was trained at unlike learning rates: {each}. What multiplies the "
                "rate by workers trains something else; take it out."
            )
            yield findings.about("F19", "The learning rate changes with the workers", text, WRONG, ours)


def _between_strategies(trained: list[Row], rates: Mapping[str, float]) -> Iterator[Finding]:
    """Findings of trained runs at one learning rate whose frameworks have no global batch in common."""
    for (model, rate), ours in grouped(trained, lambda row: (row["model"], rates[row["configuration"]])).items():
        batches = {
            str(name): {int(row["global_batch"]) for row in of}
            for name, of in grouped(ours, lambda row: row["framework"]).items()
        }
        if len(batches) > 1 and not set.intersection(*batches.values()):
            each = "; ".join(f"{name} {', '.join(map(str, sorted(sizes)))}" for name, sizes in sorted(batches.items()))
            text = (
                f"Results of {model} at one learning rate ({rate:g}) and unlike global batches ({each}) compare "
                "numbers of steps, not strategies. Train all at one global batch."
            )
            yield findings.about("F23", "Strategies with unlike optimiser steps", text, WRONG, ours)


def _trained(evidence: Evidence, rows: list[Row]) -> list[Row]:
    """Those that were trained to a result."""
    return [row for row in rows if any(evidence.fact(row, "training"))]


# Did every timed step train? With fp16 a step whose gradients overflow is left out, and is shorter than the others.


def skipped_steps(evidence: Evidence) -> Iterator[Finding]:
    """Configurations whose loss scaler left out steps of the timed window: it had not settled in the warm-up."""
    skipped = [(row, max(evidence.fact(row, "skipped_steps"), default=0)) for row in evidence.rows]
    concerned = [(row, int(count)) for row, count in skipped if count]
    if not concerned:
        return
    rows = [row for row, _ in concerned]
    most = max(count for _, count in concerned)
    text = (
        f"The loss scaler of fp16 left out up to {findings.count(most, 'optimiser step')} of a timed window "
        f"({findings.named(rows)}): gradients were not finite, nothing was updated, and the step was shorter. Raise "
        "warmup_steps until the scale has settled."
    )
    yield findings.about("skipped steps", "Timed steps that trained nothing", text, DOUBT, rows)


# Did the ranks of a user's own command train one model together? Its observer looked (scaling_study/observe/checks.py).


OF_ONE_COMMAND = ("command", "arguments", "workdir", "batch_per_worker", "learning_rate")


def doubted_commands(evidence: Evidence) -> Iterator[Finding]:
    """Notes of observed commands, such as "gradients are not averaged", each with the configurations that have it; and
    a learning rate that a command changes with its workers."""
    by_name = {row["configuration"]: row for row in evidence.rows if row["framework"] == COMMAND}
    notes = as_rows(evidence.results.details.notes)
    concerned = (note for note in notes if note["configuration"] in by_name and note["note"].startswith(DOUBTED))
    for text, ours in grouped(concerned, lambda note: str(note["note"]).removeprefix(DOUBTED)).items():
        rows = [by_name[name] for name in dict.fromkeys(note["configuration"] for note in ours)]
        said = f'The observer of {findings.named(rows)} says: "{text}".'
        yield findings.about("unlike ranks", "A command that may not train as it seems", said, DOUBT, rows)
    for rows in grouped(by_name.values(), lambda row: values_of(row, OF_ONE_COMMAND)).values():
        rates = {int(row["workers"]): _first_rate(evidence, row) for row in rows}
        known_rates = {workers: rate for workers, rate in sorted(rates.items()) if rate is not None}
        if len(set(known_rates.values())) > 1:
            each = ", ".join(f"{rate:g} with {workers_text(workers)}" for workers, rate in known_rates.items())
            text = f"The learning rate of {rows[0]['command']} changes with the workers: {each}. {TIMED}"
            yield findings.about("F19", "The learning rate changes with the workers", text, NOTE, rows)


def _first_rate(evidence: Evidence, row: Row) -> float | None:
    return next((rate for rates in evidence.fact(row, "first_learning_rates") for rate in rates), None)


# Speed-ups above the number of workers: there is a reason, and it is seldom a fast framework.
#
# "Over 10 x on two GPUs" was unequal work (F9) and another model (F10). Intervals are simultaneous (Bonferroni over all
# speed-ups of the study): at most 5 % of false alarms.

WITHOUT_INTERVAL = 1.25  # of the ideal: a single repeat must be so far above it to be suspected


def superlinear_speedups(evidence: Evidence) -> Iterator[Finding]:
    alike = [(row, base) for row, base in evidence.pairs if not unlike_work(row, base)]  # the others are said to be so
    grown = [(row, base) for row, base in alike if int(row["workers"]) > int(base["workers"])]
    sure = [(row, base) for row, base in grown if min(row["n"], base["n"]) >= FEWEST_REPEATS]
    lows = [(row, over(row, base, simultaneous(len(sure))).low or 0.0, ideal(row, base)) for row, base in sure]
    if above := [(row, low, most) for row, low, most in lows if low > most]:
        worst, low, _ = max(above, key=lambda case: case[1] / case[2])
        rows = [row for row, *_ in above]
        text = (
            f"Faster than the number of workers allows, beyond all noise: {findings.named(rows)}; most, "
            f"{worst['speedup']:.2f} x on {worst['workers']} workers, at least {low:.2f} x. Look for unequal work, "
            "another model or another precision first, then for caches that now hold what they did not."
        )
        yield findings.about("superlinear", "Superlinear speed-up", text, WRONG, rows)
    few = [(row, base) for row, base in grown if min(row["n"], base["n"]) < FEWEST_REPEATS]
    if single := [row for row, base in few if float(row["speedup"]) > WITHOUT_INTERVAL * ideal(row, base)]:
        text = (
            f"{findings.named(single)}: up to {max(float(row['speedup']) for row in single):.2f} x, above the number "
            f"of workers, from too few repeats for an interval. Repeat it {FEWEST_REPEATS} times before it is quoted."
        )
        yield findings.about("superlinear", "Superlinear speed-up, perhaps", text, DOUBT, single)


def ideal(row: Row, base: Row) -> float:
    """The most that more workers could gain: the ratio of the workers."""
    return int(row["workers"]) / int(base["workers"])


VIEW = View(
    "Is it the same work that is compared?",
    detectors=(
        parity_verdicts,
        several_parameter_counts,
        one_parameter_count,
        variants,
        lost_weights,
        miscounted_samples,
        unlike_epochs,
        unlike_data,
        superlinear_speedups,
        unequal_steps,
        skipped_steps,
        doubted_commands,
    ),
)
