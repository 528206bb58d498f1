"""The first sentences of a page: what each kind of study was made to find out, from facts and from planted studies."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from planted import Planted, plant, ten_frameworks
from planted_phases import STEP, Phased, grown, plant_phased
from planted_pipelines import Pipeline, plant_pipelines
from planted_trainings import CRITICAL, Trained, TrainedIn, plant_trained, plant_trainings

from analysis.frames import results
from analysis.frames.rows import as_rows
from analysis.report import answer, extent, headline
from analysis.report.changes import NO_DIFFERENCE, RESOLVED, Change
from analysis.report.headline import Facts, Fastest, Reached, Way
from analysis.views import allreduce_gain, throughput
from analysis.views.target import BEST, NOT_RESOLVED, SLOWER, TIED, trained_configurations

ONE = Planted("single", noise=0.002)
TWO = Planted("horovod", workers=2, allreduce="fp32", speed=175.0, noise=0.002)
HALF = replace(TWO, allreduce="fp16")


def said(folder: Path, *planted: Planted, **about: object) -> list[str]:
    about = {"baseline": {"framework": "single"}} | about
    return headline.sentences(headline.facts(results.read(plant(folder, planted, **about))))


def test_workers_a_two_valued_axis_and_the_fastest_of_each_model() -> None:
    ways = [Way(model, "w", 2, 1, gain, gain - 0.05, gain + 0.06) for model, gain in
            (("resnet8", 1.74), ("resnet8", 1.79), ("resnet18", 1.44), ("resnet18", 1.62))]  # fmt: skip
    small = [
        Change("resnet8", "fp16 gradients", 0.96, 0.90, 1.02, NOT_RESOLVED),
        Change("resnet18", "fp16 gradients", 1.04, 0.99, 1.09, NOT_RESOLVED),
    ]
    fastest = Fastest("resnet18", "910 images/s [879, 940]", "horovod, fp16, batch 64", 6, 8, others=1, room=0.06)
    facts = Facts("single", ways, changes=small, fastest=[fastest])
    assert headline.sentences(facts) == [
        "**A second worker gives 1.74 to 1.79x (resnet8, each within ±0.06) and 1.44 to 1.62x (resnet18, each within "
        "±0.06).**",
        "fp16 gradients: not resolved [-10, +9] %.",
        "Highest mean throughput: resnet18 910 images/s [879, 940] (horovod, fp16, batch 64; too close to call: 1 of 7 "
        "others, up to +6 %).",
    ]
    four = [*ways, Way("resnet8", "w", 8, 1, 6.2, 6.0, 6.4)]
    assert "**A second worker gives" in (first := headline.sentences(replace(facts, ways=four))[0])
    assert first.endswith("; 8 workers give 6.20x [6.00, 6.40] (resnet8).**")
    few = headline.sentences(replace(facts, ways=[*ways[:3], replace(ways[3], low=None, high=None)]))[0]
    assert few.endswith("1.44 to 1.62x (resnet18, too few repeats for intervals).**")


@pytest.mark.parametrize(
    ("resnet18", "said"),
    [
        ([(1.12, 1.05, 1.19, RESOLVED)], "+12 % [+5, +19] with resnet18; not resolved with resnet8 [-10, +10] %"),
        (
            [(1.036, 1.0032, 1.0694, RESOLVED), (1.0363, 1.0028, 1.0702, RESOLVED)],
            "+4 % [+0.3, +7] with resnet18; not resolved with resnet8 [-10, +10] %",
        ),
        (
            [(1.24, 1.20, 1.28, RESOLVED), (1.36, 1.32, 1.41, RESOLVED)],
            "+24 to +36 % (each within ±5 %) with resnet18; not resolved with resnet8 [-10, +10] %",
        ),
        (
            [(1.0, 0.95, 1.05, NOT_RESOLVED), (1.1, 1.04, 1.17, RESOLVED)],
            "0 to +10 % (each within ±7 %) with resnet18, resolved in 1 of 2 comparisons; not resolved with resnet8 "
            "[-10, +10] %",
        ),
        (
            [(1.004, 0.992, 1.017, NO_DIFFERENCE)],
            "not resolved with resnet8 [-10, +10] %; no difference with resnet18 [-0.8, +2] %",
        ),
    ],
)
def test_a_change_is_said_with_its_interval_what_is_resolved_first(
    resnet18: list[tuple[float, float, float, str]], said: str
) -> None:
    eight = [(0.96, 0.90, 1.02, NOT_RESOLVED), (1.04, 0.98, 1.10, NOT_RESOLVED)]
    changes = [
        Change(model, "fp16 gradients", *judged)
        for model, every in (("resnet8", eight), ("resnet18", resnet18))
        for judged in every
    ]
    assert headline.sentences(Facts(changes=changes)) == [f"**fp16 gradients: {said}.**"]


def test_16_bit_gradients_are_as_their_own_view_judges_them(tmp_path: Path) -> None:
    """Beside another axis, for which they are not corrected."""
    pair = [replace(one, noise=0.01) for one in (TWO, replace(HALF, speed=182.0))]
    larger = [replace(one, batch_per_worker=64, speed=240.0) for one in pair]
    read = results.read(plant(tmp_path, [*pair, *larger]))
    found = [one for one in headline.facts(read).changes if one.what == "fp16 gradients"]
    words = {allreduce_gain.FASTER: RESOLVED, allreduce_gain.SLOWER: RESOLVED}
    judged = [
        ((of["gain_low"], of["gain_high"]), words.get(of["verdict"], of["verdict"]), round(of["gain"], 9))
        for of in as_rows(allreduce_gain.gains(read))
    ]
    assert len(judged) == 2
    assert sorted((one.corrected, one.effect, round(one.ratio, 9)) for one in found) == sorted(judged)


def test_a_ratio_has_the_interval_of_its_tables_wherever_it_stands(tmp_path: Path) -> None:
    """Corrected ones stand beside verdicts, under a label of their own."""
    three = [replace(TWO, framework=name, noise=0.02, speed=speed) for name, speed in
             (("torch_ddp", 178.0), ("horovod", 170.0), ("mpi_allreduce", 150.0))]  # fmt: skip
    read = results.read(plant(tmp_path, [replace(ONE, noise=0.02), *three], baseline={"framework": "single"}))
    ends = {row["framework"]: (row["speedup_low"], row["speedup_high"]) for row in read.rows}
    ways = headline.facts(read).ways
    assert len(ways) == 3 and all((way.low, way.high) == ends[way.name] for way in ways)
    listing = throughput.verdicts_listing(read)
    assert listing is not None and listing.header[3:5] == ("ratio [95 %]", "[among its row]")
    (beside,) = (row[3] for row in listing.rows if row[0].startswith("single"))
    leader = max(read.rows, key=lambda row: row["samples_per_second"])
    low, high = ends[leader["framework"]]
    assert beside == f"{1 / leader['speedup']:.2f} [{1 / high:.2f}, {1 / low:.2f}]"


def test_a_pair_that_is_resolved_by_itself_and_tied_among_all_is_said_to_be_both() -> None:
    gain = Change("resnet18", "fp16 gradients", 1.036, 1.01, 1.06, RESOLVED, "", (1.003, 1.07), 4, tied_among=8)
    (said,) = headline.sentences(Facts(changes=[gain]))
    assert said == "**fp16 gradients: +4 % [+1, +6] (as a pair; among all 8 too close to call).**"
    lost = replace(gain, effect=NOT_RESOLVED, corrected=(0.99, 1.08), tied_among=0)
    assert headline.sentences(Facts(changes=[lost])) == ["**fp16 gradients: not resolved among 4 pairs [-1, +8] %.**"]


def test_a_change_of_batch_says_which_batch_of_what_and_what_changes(tmp_path: Path) -> None:
    two = [replace(TWO, batch_per_worker=batch) for batch in (32, 64)]
    one = [replace(ONE, batch_per_worker=batch) for batch in (16, 128)]
    read = results.read(plant(tmp_path, [*two, *one], baseline=None))
    whats = [sentence.split(":")[0] for sentence in headline.sentences(headline.facts(read)) if "instead" in sentence]
    assert set(whats) == {
        "Samples/s of horovod at batch 64 per worker instead of 32",
        "Samples/s of single at batch 128 instead of 16",
    }
    names = {headline.named(row, read) for row in read.rows}
    assert {"horovod, batch 32 per worker (64 global)", "single, batch 16"} <= names


def test_a_few_repeats_make_no_fastest() -> None:
    few = Fastest("resnet18", "100 images/s", "single", 1, 2)
    assert "too few repeats (1) to call it the fastest" in headline.sentences(Facts(fastest=[few]))[0]
    assert headline.sentences(Facts()) == []


def test_what_was_not_tested_against_others_is_the_highest_mean_and_not_the_fastest(tmp_path: Path) -> None:
    rivals = [replace(TWO, framework=name, speed=150.0, repeats=2) for name in ("torch_ddp", "mpi_allreduce")]
    read = results.read(plant(tmp_path, [TWO, *rivals]))
    (fastest,) = headline.facts(read).fastest
    assert (fastest.name, fastest.among, fastest.untested) == ("horovod", 3, 2)
    words = " ".join(headline.sentences(headline.facts(read)))
    assert "Fastest" not in words and "not tested against 2 others: fewer than 3 repeats" in words
    assert answer.fastest(read, "resnet18").label == "highest mean throughput"
    assert answer.cheapest(read, "resnet18").label == "lowest mean cost of a million samples"
    tested = results.read(plant(tmp_path / "tested", [TWO, *(replace(one, repeats=3) for one in rivals)]))
    assert "Fastest: " in " ".join(headline.sentences(headline.facts(tested)))
    assert answer.fastest(tested, "resnet18").label == "fastest"
    alone = results.read(plant(tmp_path / "alone", [replace(TWO, repeats=1)]))
    assert answer.fastest(alone, "resnet18").label == "fastest", "there is no other"


def test_ways_to_use_the_same_workers_are_held_against_each_other() -> None:
    best = Way("llama", "torch_ddp", 2, 1, 0.94, 0.74, 1.2, "53 % of linear speed-up: slower kernels 23.0")
    last = Way("llama", "torch_tp", 2, 1, 0.18, 0.14, 0.23, "82 % of linear speed-up: exposed communication 70.0")
    held = {"torch_ddp": 10e6, "torch_fsdp2": 7e6, "torch_tp": 5e6}
    facts = Facts("single", [best, replace(last, name="torch_fsdp2", speedup=0.4), last], several=True, held=held)
    first, slowest, losses, memory = headline.sentences(facts)
    assert first.startswith("**Of 3 ways to use 2 workers the highest mean is that of torch_ddp: 0.94x [0.74, 1.20] ")
    assert first.endswith("; no way is shown to be faster.**")
    assert slowest == "The lowest is that of torch_tp: 0.18x [0.14, 0.23]."
    assert losses == f"torch_ddp loses {best.loss}. torch_tp loses {last.loss}."
    assert memory == "All 3 fit: 5.00 MB a worker (torch_tp) to 10.0 MB (torch_ddp)."
    faster = headline.sentences(replace(facts, ways=[replace(best, low=1.1, faster=True), *facts.ways[1:]]))[0]
    assert faster.endswith("; it is faster than single.**")
    many = headline.sentences(replace(facts, ways=[replace(best, low=1.1), *facts.ways[1:]]))[0]
    assert many.endswith("; among all configurations no way is shown to be faster.**"), "not so by itself"
    assert "Out of memory: torch_dp." in headline.sentences(replace(facts, out_of_memory=["torch_dp"]))
    unsure = headline.sentences(replace(facts, ways=[replace(way, low=None, high=None) for way in facts.ways]))[0]
    assert unsure.endswith("the throughput of single; too few repeats to tell.**") and "0.94x the" in unsure
    assert headline.sentences(Facts(held=held)) == [f"**{memory}**"], "without a baseline it is memory that was asked"


def test_another_command_on_two_workers_is_not_what_a_second_worker_gives(tmp_path: Path) -> None:
    """`bench --workers 1,2 A 'A --amp'`: D is 2 workers of the second command, over one of the first."""
    b = Way("script", "2 workers, command=A", 2, 1, 1.02, 0.9, 1.2)
    d = Way("script", "2 workers, command=C", 2, 1, 1.27, 1.1, 1.5, reworded=True)
    (both,) = headline.sentences(Facts("1 worker, command=A", [b, d]))
    assert both == "**A second worker gives 1.02x [0.90, 1.20] (script).**"
    (alone,) = headline.sentences(Facts("1 worker, command=A", [d]))
    assert alone.startswith("**2 workers, command=C: 1.27x [1.10, 1.50] the throughput of 1 worker, command=A")
    one = Planted("command", "script:bench", 8, keys=(("command", "a"), ("arguments", "command=A")))
    about = {"baseline": {"framework": "command", "workers": 1, "arguments": "command=A", "batch_per_worker": 8}}
    same = replace(one, workers=2, speed=150.0)
    other = replace(same, keys=(("command", "c"), ("arguments", "command=C")))
    assert said(tmp_path / "same", one, same, **about)[0].startswith("**A second worker gives 1.5")
    assert "second worker" not in " ".join(said(tmp_path / "other", one, other, **about))


def test_a_target_says_what_reached_it_first_and_how_the_others_did() -> None:
    slower = ["mpi_allreduce", "single"]
    reached = Reached("resnet8", "accuracy=0.6", "torch_ddp", "58.5 [50.0, 67.0]", 3, {SLOWER: 2}, "58.5", slower)
    none = Reached("resnet18", "accuracy=0.9", "")
    first, others, second = headline.sentences(Facts(reached=[reached, none]))
    assert first == "**resnet8 reaches accuracy=0.6 soonest with torch_ddp: 58.5 [50.0, 67.0] s of training, 3 seeds.**"
    assert others == "Shown to be slower: mpi_allreduce; single."
    assert second == "resnet18: no configuration is shown to reach accuracy=0.9 with three seeds or more."


def test_the_model_with_most_ways_comes_first() -> None:
    deep = [Way("deep", name, 2, 1, gain, None, None) for name, gain in (("a", 1.4), ("b", 1.2), ("c", 1.0))]
    said = headline.sentences(Facts("single", [Way("flat", "a", 2, 1, 0.8, None, None), *deep], several=True))
    assert (
        said[0].startswith("**Of 3 ways to use 2 workers (deep) the highest mean is that of a")
        and "a (flat): 0.80x" in said[-1]
    )


def test_of_ties_nothing_is_soonest() -> None:
    tied = Reached("resnet8", "accuracy=0.6", "torch_ddp", "58.5 [50.0, 67.0]", 3,
                   {TIED: 2, SLOWER: 1, NOT_RESOLVED: 1}, "58.5 to 64.0", ["single"])  # fmt: skip
    first, lowest = headline.sentences(Facts(reached=[tied]))
    assert first == (
        "**resnet8 reaches accuracy=0.6 in 58.5 to 64.0 s of training with 3 of 5 configurations; 3 seeds do "
        "not tell them apart; not resolved: 1 more.**"
    )
    assert lowest == "Lowest mean: torch_ddp, 58.5 [50.0, 67.0] s, 3 seeds. Shown to be slower: single."


def test_a_planted_study_of_workers_and_16_bits(tmp_path: Path) -> None:
    first, *others = said(tmp_path, ONE, TWO, HALF)
    assert re.fullmatch(
        r"\*\*A second worker gives 1\.7\d( to 1\.7\d)?x \(resnet18, each within ±0\.0\d\)\.\*\*", first
    )
    assert re.search(r"fp16 gradients: no difference \[-0\.\d+, \+0\.\d+\] %\.", " ".join(others))
    assert re.search(r"Highest mean throughput: resnet18 17\d images/s \[17\d, 17\d\] \(horovod, fp(16|32); too close",
                     others[-1])  # fmt: skip
    gained = said(tmp_path / "gained", ONE, TWO, replace(HALF, speed=210.0))
    assert any(re.fullmatch(r"fp16 gradients: \+20 % \[\+1[89], \+2[12]\]\.", one) for one in gained), gained
    (change,) = headline.facts(results.read(tmp_path / "gained")).changes
    assert change.effect == RESOLVED and 1 < change.low < change.ratio < change.high and change.name == "horovod, fp16"


def test_a_planted_study_of_one_gpu_says_what_its_batch_brings(tmp_path: Path) -> None:
    gpu = replace(ONE, keys=(("device", "cuda"),))
    sentences = said(tmp_path, gpu, replace(gpu, batch_per_worker=128, speed=150.0), baseline=None)
    assert sentences[0].startswith("**Fastest: resnet18 150 images/s [") and "batch 128" in sentences[0]
    assert re.fullmatch(r"Samples/s at batch 128 instead of 32: \+50 % \[\+(49|50), \+5\d\]\.", sentences[1])


def test_a_planted_study_of_pipelines_says_how_long_stages_idle(tmp_path: Path) -> None:
    single = Planted("single", "transformer_lm", 16, speed=80.0, tokens=35)
    folder = plant_pipelines(tmp_path, [Pipeline("gpipe", p=2, m=4)], [single], baseline={"framework": "single"})
    text = " ".join(headline.sentences(headline.facts(results.read(folder))))
    assert re.search(r"Stages of .* are idle for \d+ % of a step \(20 % in theory\); its cut allows 1\.\d\dx", text)


def test_a_planted_study_of_frameworks_names_the_best_and_where_the_last_loses(tmp_path: Path) -> None:
    frameworks = said(tmp_path / "ten", *ten_frameworks(batches=(32,), precisions=("fp32",)))
    assert frameworks[0].startswith("**Of ") and "2 workers the highest mean is that of torch_ddp" in frameworks[0]
    base = Phased(Planted("single"), STEP)
    others = [
        Phased(Planted(name, workers=2, allreduce="fp32"), grown(communication=0.01 * place))
        for place, name in enumerate(("torch_ddp", "horovod", "mpi_allreduce"), start=1)
    ]
    text = " ".join(headline.sentences(headline.facts(results.read(plant_phased(tmp_path / "lost", [base, *others])))))
    assert re.search(r"mpi_allreduce loses \d+ % of linear speed-up: exposed communication ", text)


def test_a_planted_study_of_workers_says_where_the_one_that_loses_most_loses_it(tmp_path: Path) -> None:
    base, near = Phased(ONE, STEP), Phased(TWO, grown(communication=0.01))
    far = Phased(HALF, grown(communication=0.025, backward=0.010))
    for name, planted, most in (("two", [base, near, far], "horovod, fp16 loses most, 26 %"), ("one", [base, near],
                                "horovod loses 9.1 %")):  # fmt: skip
        first, lost, *_ = headline.sentences(headline.facts(results.read(plant_phased(tmp_path / name, planted))))
        assert first.startswith("**A second worker gives") and lost.startswith(f"{most} of linear speed-up: ")
        assert ("communication 25.9 ± 0.0 (exposed 18.5, overlapped 7.4)" in lost) == (name == "two")


def test_a_planted_study_of_a_target_says_what_a_second_worker_does_to_a_step_and_how_well_its_seconds_are_known(
    tmp_path: Path,
) -> None:
    """Beside the throughput's margin, which is of another number."""
    single = TrainedIn(Planted("single", "resnet8", 128), [1000, 1050, 950], step_seconds=0.10)
    ddp = TrainedIn(Planted("torch_ddp", "resnet8", 64, 2, "fp32"), [1000, 1050, 950], step_seconds=0.06)
    read = plant_trained(tmp_path, [single, ddp])
    first, others, *_ = sentences = headline.sentences(headline.facts(read))
    assert first.startswith("**resnet8 reaches accuracy=0.6 soonest with torch_ddp")
    assert others.startswith("Shown to be slower: single")
    text = " ".join(sentences)
    gain = r"At the same global batch \(128\) a second worker makes a step 1\.67x \[1\.6\d, 1\.6\d\] as fast\."
    assert re.search(gain, text)
    assert "Small models only (resnet8 0.078 M parameters)" in text
    row = next(row for row in as_rows(trained_configurations(read)) if row["soonest"] == BEST)
    value, low, high = (row[f"seconds_to_target{end}"] for end in ("", "_low", "_high"))
    times = max(high / value, value / low)
    assert f"The lowest mean is known to ±{100 * (times - 1):.0f} % (3 seeds). Throughput: margin ±" in headline.margin(
        read
    )


@pytest.mark.parametrize(
    ("bounds", "said"),
    [
        ((4.99, 2.63, 9.44), "to a factor of 1.9"),
        ((0.94, 0.62, 1.44), "to a factor of 1.5"),
        ((10.0, 9.5, 10.6), "to ±6 %"),
        ((10.0, 9.0, 10.6), "to ±11 %"),
    ],
)
def test_an_answer_is_known_to_its_farther_bound(bounds: tuple[float, float, float], said: str) -> None:
    assert extent.known_to("It", *bounds, of="3 seeds") == f"It is known {said} (3 seeds). "
    assert extent.known_to("It", bounds[0], None, None, of="1 seed") == "It has no interval (1 seed). "


def test_the_margin_of_ways_to_use_the_same_workers_is_not_that_of_the_best_way(tmp_path: Path) -> None:
    three = [replace(TWO, framework=name, speed=150.0) for name in ("torch_ddp", "horovod", "mpi_allreduce")]
    read = results.read(plant(tmp_path, [ONE, *three], baseline={"framework": "single"}))
    assert headline.facts(read).several
    assert re.match(r"The highest mean is known to ±\S+ % \(3 repeats\)\. Throughput: margin ±", headline.margin(read))


def test_a_critical_batch_size_is_in_the_answer(tmp_path: Path) -> None:
    planted = [Trained(64), Trained(128), Trained(256), Trained(512)]
    text = " ".join(headline.sentences(headline.facts(results.read(plant_trainings(tmp_path, planted)))))
    found = re.search(r"beyond which a larger global batch saves few steps: (\d+) samples \[(\d+), (\d+)\]\.", text)
    assert found and float(found[2]) < CRITICAL < float(found[3])


@pytest.mark.parametrize(
    ("one", "margin"),
    [
        (ONE, r"Margin ±\S+ %.*, 3 repeats"),
        (replace(ONE, repeats=1), "No margin: 1 repeat"),
        (
            replace(ONE, noise=0.1, drift=(0.2, -0.1, 0.0)),
            r"Margin ±\S+ %, 3 launches, target of ±2 % not reached by 1 of 1 intervals",
        ),
    ],
)
def test_the_margin_is_that_of_repeats_and_says_how_many_miss_the_target(
    tmp_path: Path, one: Planted, margin: str
) -> None:
    assert re.fullmatch(margin, headline.margin(results.read(plant(tmp_path, [one]))))
