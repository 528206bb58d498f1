"""The report as text and as files: its words, what is missing said, what is lost named, hostile words only words."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drawings import shown
from planted import Planted, plant, plant_default, plant_gates
from planted_hostile import CONTROL, WORDS, results_of
from planted_trainings import TrainedIn, plant_trained

import analysis
from analysis import outputs
from analysis.__main__ import main
from analysis.findings import DOUBT, NOTE, Finding
from analysis.frames import results, trials
from analysis.report import answer, headline, origins, rendering, sections, trust
from analysis.report import page as content
from analysis.report.page import Card, Cards, Code, Fold, Grid, LongListing, Material, Part, Report, Section, Text
from analysis.show.layout import BEST, Cell
from analysis.views import figures, target, tasks
from scaling_study import errors
from scaling_study.records import store
from tests.net.examples import example, outside

TITLES = (
    *("The answer", "Can you trust it", "Tables", "Figures", "Why", "What next"),
    *("Published beside measured", "Provenance"),
)


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """For what is not about figures: drawing them takes most of the time."""
    monkeypatch.setattr("analysis.views.figures.write", lambda *_: [])


def made(folder: Path, planted: Sequence[Planted], **about: object) -> Report:
    return sections.report(Material(results.read(plant(folder, planted, **about)), str(folder), {}))


def parts_of(report: Report, kind: type[Part], section: int = 0) -> list[Any]:
    """All parts of a kind in a section, folded or not."""
    parts = report.sections[section].parts
    every = [inner for part in parts for inner in (part.parts if isinstance(part, Fold) else [part])]
    return [part for part in every if isinstance(part, kind)]


def text_of(report: Report) -> str:
    return rendering.markdown(report)


# --- what it says ---


def test_the_answer_names_the_fastest_with_its_interval_and_what_may_be_as_fast(tmp_path: Path) -> None:
    one = Planted("single", speed=100.0, noise=0.001)
    two = replace(one, framework="horovod", workers=2, allreduce="fp32", speed=180.0)
    near = replace(two, allreduce="fp16", speed=180.2)
    report = made(tmp_path, [one, two, near], baseline={"framework": "single"})
    (cards,) = parts_of(report, Cards)
    fastest, cheapest, efficient = cards.cards  # no scaling limit is known of two worker counts, and none is claimed
    assert fastest.label == "fastest (one of 2)" and fastest.name.startswith("horovod, fp")
    assert fastest.value == "180 images/s"
    assert re.fullmatch(r"95 %: 1[78]\d(\.\d+)? to 18\d(\.\d+)?, 3 repeats", fastest.interval)
    assert len(fastest.alike) == 1 and re.fullmatch(r"horovod, .* \(1\.00, up to \S+ % faster\)", fastest.alike[0])
    assert cheapest.name == "single, batch 32" and cheapest.value == "2.78 worker-hours" and not cheapest.alike
    assert not cheapest.note and efficient.value == "90 %" and efficient.alike
    assert not re.search(r"\btied\b", text_of(report))
    lead = report.sections[0].lead
    assert re.fullmatch(r"\*\*A second worker gives 1\.80x \(resnet18, each within ±0\.0\d\)\.\*\*", lead)
    lost, effect, best = parts_of(report, content.Bullets)[0].items
    assert re.match(r"horovod, fp(16|32) loses most, (9\.9|10) % of linear speed-up: ", lost)
    assert effect.startswith("fp16 gradients: no difference [") and "too close to call: 1 of 2 others, up to +" in best


def test_nothing_is_claimed_of_a_single_repeat(tmp_path: Path) -> None:
    one = Planted("single", repeats=1)
    report = made(tmp_path, [one, replace(one, framework="horovod", workers=2, allreduce="fp32", speed=150.0)])
    fastest = parts_of(report, Cards)[0].cards[0]
    assert fastest.interval == "no interval: n = 1" and "not ranked" in fastest.note
    said = report.sections[0].lead
    assert re.match(
        r"\*\*Highest mean throughput: resnet18 1\d\d images/s \(horovod; too few repeats \(1\) to call it", said
    )


@pytest.mark.parametrize(("noise", "tone", "missed"), [(0.001, content.GOOD, False), (0.1, NOTE, True)])
def test_the_box_is_green_where_the_target_is_reached(tmp_path: Path, noise: float, tone: str, missed: bool) -> None:
    box = answer.trusted([], results.read(plant(tmp_path, [Planted(noise=noise)])))
    assert box.tone == tone and ("target of ±2 % not reached by 1 of 1 intervals" in box.text) == missed


def test_an_open_end_of_an_interval_is_no_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = plant_trained(tmp_path, [TrainedIn(Planted("single", "resnet8", 128), [1000, 1050, 950], step_seconds=0.1)])
    rows = target.trained_configurations(read).assign(seconds_to_target_low=math.nan)
    monkeypatch.setattr(tasks, "trained_configurations", lambda _: rows)
    (card,) = answer.soonest(read, "resnet8")
    assert re.fullmatch(r"95 %: \? to [\d.]+, 3 seeds", card.interval)


def test_where_nothing_is_ok_nothing_is_good(tmp_path: Path) -> None:
    text = text_of(made(tmp_path, [Planted(status="failed", speed=None)]))
    assert "No trial is ok, so there are no results." in text and "No comparable configuration was measured" in text
    assert "no warnings" not in text.lower()


def test_what_could_not_be_read_and_what_was_not_run_is_counted_and_doubted(tmp_path: Path) -> None:
    one, two = Planted("single"), Planted("horovod", workers=2, allreduce="fp32", speed=900.0)
    ids = [each.trial().configuration for each in (one, two)]
    plant(tmp_path, [one, two], configurations=ids)
    for path in tmp_path.glob("trials/horovod*/record.json"):
        path.write_text("{")
    with pytest.warns(trials.SkippedRecord):
        text = text_of(sections.report(Material(results.read(tmp_path), "r", {})))
    assert "1 of 2 configurations measured" in text
    assert "Records that cannot be read; Configurations without a record" in text.split("## Can you trust it")[0]
    assert "3 records could not be read. 1 configuration of the study without a record." in text
    assert f"have no record that can be read: {ids[1]}." in text.replace("has no", "have no")
    assert "Every trial that could run is ok" not in text
    for path in tmp_path.glob("trials/*/record.json"):
        path.write_text("{")
    with pytest.warns(trials.SkippedRecord):
        text = text_of(sections.report(Material(results.read(tmp_path), "r", {})))
    assert "There is none: none could be read of 6 records." in text and "6 records could not be read." in text


def test_more_workers_than_room_are_in_tables_and_neither_in_the_answer_nor_in_figures(tmp_path: Path) -> None:
    crowded = (("oversubscribe", True),)
    plumbing = [
        Planted("horovod", workers=4, allreduce="fp32", speed=900.0, keys=crowded),
        Planted("horovod", "resnet8", workers=4, allreduce="fp32", keys=crowded),
    ]
    folder = plant(tmp_path, [Planted("single"), *plumbing], baseline={"framework": "single"})
    read = results.read(folder)
    report = sections.report(Material(read, str(folder), {}))
    assert [part.title for part in parts_of(report, Cards)] == ["resnet18"]
    assert "resnet8" not in report.sections[0].lead
    text = text_of(report)
    assert "More workers than the machine has room for" in text and "neither in the answer nor in figures" in text
    assert "Throughput of resnet8" in text and "horovod, oversubscribed" in text
    drawn = figures.draw(read)
    words = " ".join(map(shown, drawn.values()))
    assert "throughput" in drawn and "resnet18" in words and "resnet8" not in words and "oversubscribed" not in words
    alone = results.read(plant(tmp_path / "alone", plumbing))
    assert alone.without_plumbing() is alone and "throughput" in figures.draw(alone)


def test_a_price_makes_the_cheapest_a_sum_of_money(tmp_path: Path) -> None:
    plant(tmp_path, [Planted(speed=100.0, noise=0.001)])
    for path in (tmp_path / "trials").glob("*"):
        record = store.read_record(path / "record.json")
        store.write_record(path, replace(record, machine_file={"name": "m", "price_per_worker_hour": 3.6}))
    report = sections.report(Material(results.read(tmp_path), "r", {}))
    cheapest = parts_of(report, Cards)[0].cards[1]
    assert cheapest.value == "10.0" and "at 3.60 a worker-hour" in cheapest.note


def test_many_models_have_their_answers_in_one_table(tmp_path: Path) -> None:
    report = made(tmp_path, [Planted(model=f"model{index}") for index in range(6)])
    (answers,) = parts_of(report, Grid)
    assert len(answers.rows) == 2 * 6, "fastest and cheapest of each"
    assert "3 more models below." in report.sections[0].lead
    assert "model5" in rendering.html(report, {})


@pytest.mark.parametrize("planted", [[], [Planted(status="failed", speed=None)], [Planted()]])
def test_a_study_of_little_or_nothing_has_a_page_too(tmp_path: Path, planted: list[Planted]) -> None:
    report = made(tmp_path, planted)
    shown = [section.title for section in report.sections]
    assert shown == [title for title in TITLES if title in shown] and {"The answer", "Provenance"} <= {*shown}
    assert all(section.lead or section.parts for section in report.sections), "an empty section says nothing"
    assert not report.lost
    assert rendering.html(report, {}).count("<h2") == len(shown)


def test_a_table_that_says_nothing_is_named_among_what_is_not_shown(tmp_path: Path) -> None:
    one, two = Planted("single", batch_per_worker=64), Planted("torch_ddp", workers=2, allreduce="fp32")
    larger = replace(two, batch_per_worker=128)
    text = text_of(made(tmp_path, [one, two, larger], baseline={"framework": "single"}))
    assert not re.search(r"(### |<summary>)Speed-up of", text)
    assert "- No speed-ups: no baseline trial" in text
    why = "no baseline (single) with the same batch per worker, otherwise the same, was run"
    assert text.count(f"No speed-up: {why} (torch_ddp).") == 1, "one reason for all batches"


def test_parity_checks_that_look_alike_are_told_apart(tmp_path: Path) -> None:
    stages = [Planted("deepspeed_zero", workers=2, allreduce="fp32", keys=(("zero_stage", stage),)) for stage in (1, 2)]
    plant_gates(tmp_path, [Planted("single"), *stages])
    report = made(tmp_path, [Planted("single"), *stages])
    (grid,) = (part for part in parts_of(report, Grid, section=1) if part.title == "Parity checks")
    assert grid.header[:6] == ("framework", "model", "workers", "gradients", "precision", "with")
    rows = [tuple(cell.text for cell in row) for row in grid.rows]
    assert len({*rows}) == len(rows) and {"ZeRO-1", "ZeRO-2"} <= {row[5] for row in rows}
    assert not any(row[5] for row in rows if row[0] == "single")


def test_more_warnings_than_one_reads_are_folded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    many = [Finding(f"flaw {place}", f"Title {place}", "Mind it.", DOUBT) for place in range(12)]
    monkeypatch.setattr("analysis.report.page.all_findings", lambda _: many)
    words = outside(text_of(made(tmp_path, [Planted()])))
    assert sum("Mind it." in line for line in words) == trust.MOST_WARNINGS == 8


@pytest.mark.slow
def test_a_page_is_read_in_a_minute_and_the_rest_is_folded_or_asked_for() -> None:
    folder = example("cifar10-scaling")
    names = ("throughput", "speedup-resnet8", "speedup-resnet18", "allreduce-gain", "drift", "steps-resnet8", "pareto")
    pictures = {name: content.Picture(name, f"{name}: cifar10-scaling", name) for name in names}
    report = sections.report(Material(results.read(folder), "X.study.zip", pictures))
    words, full = rendering.markdown(report), rendering.markdown(report, full=True)
    assert len(outside(words)) <= 120 and len(words.splitlines()) <= 300 < len(full.splitlines())
    assert words.count("<details>") == words.count("</details>") < full.count("<details>")
    first = words.split("## ")[1]
    assert "A second worker gives" in first and "fp16 gradients: +4 % [" in first and "Margin ±" in first
    assert "6 launches, target of ±2 % not reached by 12 of 12 intervals, parity passed" in first
    assert "Means of 6 launches." in words and "between launches of 16 configurations" in words
    assert not re.search(r"\b6 repeats\b", words)
    assert words.count("on resnet8_groupnorm: without BatchNorm and max-pool") == 1
    opened = re.findall(r"<details open><summary>(.*?)</summary>", rendering.html(report, {}))
    assert [text.partition(" over ")[0] for text in opened] == [
        "Speed-up of resnet8", "Speed-up of resnet18", "Gain of 16-bit gradients", "Lost efficiency by cause"
    ]  # fmt: skip
    assert [line for line in outside(words) if line.startswith("### ")] == [f"### {text}" for text in opened]
    assert re.findall(r"!\[.*?\]\(figures/(.*?)\.png\)", first) == ["speedup-resnet18"], "one figure"
    assert not re.search(r"\btied\b|No price is set|canary|sentinel", words)
    assert full.count("No price is set") == 1


@pytest.mark.usefixtures("undrawn")
def test_a_page_names_no_file_that_is_not_there(tmp_path: Path) -> None:
    plant_default(tmp_path)
    (tmp_path / "study.yaml").write_text("study: cifar10-scaling\n")
    analysis.write(tmp_path, page=True)
    named = set(re.findall(r"[\w-]+\.(?:csv|md|npz|json|yaml|html|png|svg)\b", (tmp_path / "report.md").read_text()))
    assert named <= {path.name for path in tmp_path.rglob("*")}, named


# --- as files ---


@pytest.mark.slow
def test_all_of_it_is_written_beside_each_other(tmp_path: Path) -> None:
    folder = plant(tmp_path / "r", [Planted(), Planted("horovod", workers=2, allreduce="fp32", speed=160.0)])
    (folder / "study.yaml").write_text("study: cifar10-scaling  # as it was\n")
    paths = {str(path.relative_to(folder)) for path in analysis.write(folder, page=True, full=True)}
    assert {"report.html", "report.md", "samples.npz", "results.csv", "configurations.csv", "figures/throughput.svg",
            "tables/throughput-resnet18.md", "tables/throughput-resnet18.csv"} <= paths  # fmt: skip
    assert not list(folder.rglob(".*")), "no temporary file stays"
    page = (folder / "report.html").read_text()
    for name in ("configurations", "trials"):
        assert f'data-name="{name}"' in page, "each long list has its place on the page"
    assert page.count("<img ") == len(list((folder / "figures").glob("*.png"))) == page.count("<figure ")
    words = (folder / "report.md").read_text()
    assert [line[3:] for line in words.splitlines() if line.startswith("## ")] == [*TITLES[:6], TITLES[7]]
    for linked in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", words):
        assert (folder / linked).is_file(), linked
    assert "study: cifar10-scaling  # as it was" in words and "# as it was" in page


@pytest.mark.usefixtures("undrawn")
def test_a_long_study_leaves_its_page_to_who_asks_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outputs, "MOST_TRIALS", 2)
    plant(tmp_path, [Planted()])
    analysis.write(tmp_path)
    assert not (tmp_path / "report.html").exists()
    assert main(["report", str(tmp_path)]) == 0 and (tmp_path / "report.html").exists()


@pytest.mark.usefixtures("undrawn")
def test_the_command_says_the_answer_then_where_the_page_is_and_what_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    read = results.read(plant_default(tmp_path))
    assert main(["report", str(tmp_path)]) == 0
    said = capsys.readouterr()
    sentences = [*headline.sentences(headline.facts(read)), f"{headline.margin(read)}."]
    words = " ".join([*sentences, f"{tmp_path}/report.html ("]).replace("**", "")
    assert " ".join(said.out.split()).startswith(words) and len(sentences) > 2 and not said.err
    assert main(["report", str(tmp_path / "none")]) == 2
    assert capsys.readouterr().err == f"error: {tmp_path / 'none'} does not exist\n"


@pytest.mark.slow
def test_the_same_results_are_the_same_page(tmp_path: Path) -> None:
    plant(tmp_path, [Planted(), Planted("horovod", workers=2, allreduce="fp32")])
    first = [path.read_bytes() for path in analysis.write(tmp_path, page=True)]
    assert [path.read_bytes() for path in analysis.write(tmp_path, page=True)] == first


# --- parts that cannot be made ---


def breaks(*_: object, **__: object) -> None:
    raise ZeroDivisionError("nobody foresaw it")


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(
    ("place", "what"),
    [
        ("analysis.report.page.all_findings", "warnings"),
        ("analysis.report.answer.fastest", "the answer for resnet8"),
        ("analysis.show.notes.under_speedup", "speed-up of resnet18"),
        ("analysis.report.sections.bottlenecks", "the bottlenecks"),
        ("analysis.report.sections.suggestions", "what is most worth measuring"),
        ("analysis.report.sections.ratios.claims_table", "Published beside measured"),
        ("analysis.report.sections._samples", "Provenance"),
    ],
)
def test_a_part_that_fails_is_named_where_it_would_have_stood_and_when_all_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], place: str, what: str
) -> None:
    plant_default(tmp_path)
    monkeypatch.setattr(place, breaks)
    assert main(["report", str(tmp_path)]) == 1
    said = capsys.readouterr().err
    assert f"error: {what} could not be made: ZeroDivisionError: nobody foresaw it" in said and "Traceback" not in said
    page, words = (tmp_path / "report.html").read_text(), (tmp_path / "report.md").read_text()
    for text in (page, words):
        assert "this part could not be made: ZeroDivisionError: nobody foresaw it" in text
        assert f"{what} could not be made" in text, "at the top of the page as well"
        for title in (title for title in TITLES if title != "Figures"):  # none was drawn
            assert title in text
    assert page.index("of this page could not be made") < page.index("<main")


# --- words of others ---


@pytest.mark.parametrize("kind", WORDS)
def test_words_of_others_make_no_markdown_and_no_html(tmp_path: Path, kind: str) -> None:
    report = sections.report(Material(results.read(results_of(tmp_path, WORDS[kind])), "r", {}))
    assert not report.lost
    words = rendering.markdown(report)
    ours = re.sub(r"</?details>|</?summary>", "", words)
    assert not CONTROL.search(words) and "<" not in ours and not re.search(r"\]\((?!figures/)", words)
    headings = [line for line in words.splitlines() if re.match(r"#{1,2} ", line)][1:]
    assert headings and headings == [f"## {title}" for title in TITLES if f"## {title}" in headings]
    tags = Tags()
    tags.feed(rendering.html(report, {}))
    assert not tags.seen & {"iframe", "object", "embed", "form", "base", "img"} and tags.scripts == 1
    assert not {name for name in tags.attributes if name.startswith("on")}
    assert all(address.startswith(("#", "data:")) for address in tags.addresses)


class Tags(HTMLParser):
    """Which there are, and where they lead."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()
        self.attributes: set[str] = set()
        self.addresses: list[str] = []
        self.scripts = 0

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        self.attributes |= {name for name, _ in attributes}
        self.addresses += [value or "" for name, value in attributes if name in ("href", "src")]
        self.scripts += tag == "script" and ("type", "application/json") not in attributes


NASTY = "</script><script>alert(1)</script>\u2028 **b** `c` & \"'"


def test_every_kind_of_part_escapes_what_it_is_given() -> None:
    cell = Cell(NASTY, BEST, share=0.5)
    grid = Grid(NASTY, (NASTY, NASTY), ((cell, cell),), (NASTY,), 1, "a.csv", NASTY)
    listing = LongListing("a", NASTY, (NASTY,), ((NASTY, None, 1.5),), "b.csv")
    card = Card(NASTY, NASTY, NASTY, NASTY, (NASTY,), NASTY)
    parts = (grid, listing, Cards(NASTY, (card,)), Text(NASTY, "doubt", NASTY), Code(NASTY), content.Bullets((NASTY,)))
    fold = content.Fold(NASTY, parts)
    page = rendering.html(Report(NASTY, (NASTY,), (Section("a", NASTY, NASTY, (*parts, fold)),), (NASTY,)), {})
    tags = Tags()
    tags.feed(page)
    assert tags.scripts == 1
    assert "\u2028" not in re.findall(r'<script type="application/json">(.*?)</script>', page)[0]
    assert json.loads(re.findall(r'<script type="application/json">(.*?)</script>', page)[0]) == {
        "columns": [NASTY], "values": [[NASTY, None, 1.5]]
    }  # fmt: skip


@pytest.mark.usefixtures("undrawn")
def test_traces_of_a_profiled_trial_are_linked(tmp_path: Path) -> None:
    plant(tmp_path, [Planted()])
    folder = tmp_path / "profiles" / "single #1"
    folder.mkdir(parents=True)
    for name in ("torch-rank-0.json.gz", "horovod-timeline.json", "log.txt", "torch-rank-1.json.gz.html"):
        (folder / name).write_text("{}")
    (folder / "torch-rank-2.json.gz").symlink_to(folder / "log.txt")
    analysis.write(tmp_path, page=True)
    assert origins.Origins.of(tmp_path).profiles == (
        "profiles/single #1/horovod-timeline.json", "profiles/single #1/torch-rank-0.json.gz"
    )  # fmt: skip
    assert 'href="./profiles/single%20%231/torch-rank-0.json.gz"' in (tmp_path / "report.html").read_text()
    assert "](<./profiles/single%20%231/torch-rank-0.json.gz>)" in (tmp_path / "report.md").read_text()


def test_origins_are_collected_while_the_results_are_read(tmp_path: Path) -> None:
    plant_default(tmp_path)
    cut, strange = sorted((tmp_path / "trials").glob("*"))[:2]
    (cut / "record.json").write_text("{")
    store.write_record(strange, replace(store.read_trial(strange), status="fine"))
    with pytest.warns(trials.SkippedRecord):
        read, collected = outputs.read_folder(tmp_path)
    assert collected.trials == len(read.trials) + 1 > 14, "one is readable, and skipped"
    readable = [store.read_trial(folder) for folder in sorted((tmp_path / "trials").glob("*")) if folder != cut]
    expected = {r.id: [rank.step_seconds for rank in r.ranks] for r in readable if r.status == "ok"}
    collected.write_samples(tmp_path / "samples.npz")
    with np.load(tmp_path / "samples.npz", allow_pickle=False) as samples:
        assert {name: samples[name].tolist() for name in samples} == expected, "every raw sample"
    assert list(collected.step_seconds) == list(expected) and collected.samples == sum(map(np.size, expected.values()))
    assert collected.about["device"] == Counter(rank.device_name for r in readable for rank in r.ranks)
    assert collected.commands == {r.configuration: errors.printable(r.command) for r in reversed(readable)}
