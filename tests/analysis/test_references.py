"""Published speeds: read from a file or refused, of one device, and beside measured ones of the same class alone."""

from __future__ import annotations

from dataclasses import replace
from itertools import cycle
from pathlib import Path

import pytest
from planted import Planted, plant
from planted_trainings import TrainedIn, plant_trained

from analysis.frames import results
from analysis.frames.results import Results
from analysis.published import references
from analysis.published.references import MINUTES, Reference, published
from analysis.report import answer
from analysis.show import layout
from scaling_study import cli
from scaling_study.errors import StudyError
from scaling_study.models import OURS
from tests.net.examples import example

H200, H100, T4, MIG = "NVIDIA H200", "NVIDIA H100 80GB HBM3", "Tesla T4", "NVIDIA H100 80GB HBM3 MIG 1g.10gb"
KEYS = {"device": "cuda", "data": "synthetic", "image_size": 224, "precision": "fp16"}
RESNET = Planted("single", "resnet50", 256, speed=4868.3, noise=0.0, keys=tuple(KEYS.items()))
HEADER = "model,precision,device,count,figure,unit,of,source,verified"
ROW = "resnet50,bf16,T4,1,100,images/s,device,a page,yes"


def on(devices: str, folder: Path, *planted: Planted, own: Path | None = None) -> Results:
    """A study whose ranks ran on GPUs of this name; of several, with a semicolon, in turn."""
    plant(folder, planted)
    return renamed(devices, folder, own)


def renamed(devices: str, folder: Path, own: Path | None) -> Results:
    records = sorted(folder.glob("trials/*/record.json"))
    for record, device in zip(records, cycle(devices.split("; ")), strict=False):
        text = record.read_text()
        assert '"device_name": "Xeon"' in text
        record.write_text(text.replace('"device_name": "Xeon"', f'"device_name": "{device}"'))
    return replace(results.read(folder), references=own)


def named(one: Planted) -> str:
    return one.trial().configuration


def figures(model: str, **keys: object) -> set[tuple[int, float]]:
    """(devices, figure) of the references of a model with these values."""
    ours = (one for one in published() if one.model == model and one.verified)
    return {(one.count, one.figure) for one in ours if all(getattr(one, key) == keys[key] for key in keys)}


def test_every_row_has_a_source_and_what_was_not_read_there_a_reason() -> None:
    assert len(published()) > 40 and len(set(published())) == len(published())
    for one in published():
        assert one.source.startswith("https://"), one
        assert one.verified or one.doubt, one


def test_a_verified_model_is_one_that_may_be_measured() -> None:
    assert not {one.model for one in published() if one.verified and not one.model.startswith("timm:")} - {*OURS}


def test_the_figures_are_those_of_their_sources() -> None:
    lambdas = {"unit": "images/s", "input": "synthetic"}
    assert figures("resnet50", device="H100 SXM", **lambdas) == {(1, 2791), (2, 5532), (4, 11053), (8, 22088)}
    assert {(1, 1866), (1, 1976)} <= figures("resnet50", device="H100 PCIe")
    assert {(1, 4868.3), (1, 2204.13), (1, 3079), (8, 24479)} == figures("resnet50", device="H200")
    minutes = figures("resnet50", unit=MINUTES, target="accuracy=0.759")
    assert minutes == {(8, 13.466), (64, 2.664), (512, 0.509), (3584, 0.183)}
    assert figures("gpt2", device="A100") == {(1, 142_156), (4, 419_259)}
    assert figures("llama_3_1_8b", precision="bf16") == {(8, 5762), (8, 6667), (128, 5605), (128, 6514)}
    assert figures("timm:vit_small_patch16_224", input="synthetic") == {(1, 2305), (1, 7716), (1, 8003)}


def test_figures_are_compared_per_device() -> None:
    def one(count: int, figure: float) -> Reference:
        (found,) = [one for one in published() if (one.count, one.figure) == (count, figure)]
        return found

    assert one(8, 22088).per_device == 2761, "published in total"
    assert one(128, 5605).per_device == 5605, "published of a device"
    assert one(8, 13.466).per_device == pytest.approx(107.728), "minutes of all devices together"


@pytest.mark.parametrize(
    ("device", "class_"),
    [(H200, "H100 and H200"), (H100, "H100 and H200"), ("H100 PCIe", "H100 and H200"), (T4, "T4"),
     ("NVIDIA A100-SXM4-80GB", "A100"), ("NVIDIA H20", "H20"), (MIG, "H100 80GB HBM3 MIG 1g.10gb")],
)  # fmt: skip
def test_a_device_has_a_class(device: str, class_: str) -> None:
    assert references.device_class(device) == class_


def test_the_nearest_reference_comes_first_and_says_what_differs(tmp_path: Path) -> None:
    larger = replace(RESNET, batch_per_worker=792, speed=6320.0)
    read = on(H200, tmp_path, RESNET, larger)
    same, other = (references.beside(read)[named(one)] for one in (RESNET, larger))
    assert (same[0].share, same[0].differs) == (pytest.approx(1.0), ())
    assert (other[0].reference, other[0].differs) == (same[0].reference, ("batch 792 instead of 256",))
    assert other[0].share == pytest.approx(6320 / 4868.3)
    said = {pair.reference.figure: pair.differs for pair in other}
    assert said[56074] == (
        "H200 instead of H100 SXM",
        "1 device instead of 8",
        "synthetic instead of real data",
        "batch 792 instead of 400",
    )
    (sxm,) = [pair for pair in other if pair.reference.figure == 2791]
    assert sxm.power == (f"limit of 700 W, about {round(sxm.measured.watts, -1):,.0f} W drawn here",)
    assert all(pair.reference.verified for pair in other)


def test_no_power_is_said_of_blocks_that_are_short_for_a_counter_of_energy(tmp_path: Path) -> None:
    read = on(H200, tmp_path, replace(RESNET, drift=(0.0, 0.01, -0.01)))
    (ours,) = references.measured(read)
    assert ours.watts is None
    said = {power for pairs in references.beside(read).values() for pair in pairs for power in pair.power}
    assert said == {"limit of 350 W", "limit of 700 W"}


def test_the_answer_and_the_table_hold_the_nearest_and_the_fastest(tmp_path: Path) -> None:
    read = on(H200, tmp_path, replace(RESNET, batch_per_worker=792, speed=6320.0))
    assert answer.fastest(read, "resnet50").note == (
        "130 % of 4,868 images/s a device (milabench: PyTorch, 1 × H200); "
        "87 % of 7,283 images/s a device (MLPerf 3.0: MXNet and DALI, 4 × H100 SXM)"
    )
    listing = references.listing(read)
    assert listing and len(listing.rows) == references.SHOWN + 1
    assert listing.rows[0][2:5] == ("6,320 images/s", "130 %", "4,868")
    assert listing.rows[-1][3:5] == ("87 %", "7,283"), "the fastest published"
    text = layout.markdown(listing)
    assert "https://github.com/mila-iqia/milabench/" in text and "one batch is used again and again" in text
    assert len(references.table(read)) == len(figures("resnet50")) - 4, "all but the minutes"


@pytest.mark.parametrize(
    ("device", "changes"),
    [
        (T4, {}),
        (MIG, {}),
        (f"{H200}; {H100}", {}),
        (H200, {"device": "cpu"}),
        (H200, {"image_size": 32}),
        (H200, {"image_size": None}),
        (H200, {"model": "resnet18"}),
        (H200, {"oversubscribe": True}),
    ],
    ids=str,
)
def test_nothing_is_said_across_classes_models_and_sizes(
    tmp_path: Path, device: str, changes: dict[str, object]
) -> None:
    read = on(device, tmp_path, replace(RESNET, keys=tuple({**KEYS, **changes}.items())))
    assert not references.beside(read) and references.listing(read) is None
    assert "a device" not in answer.fastest(read, str(changes.get("model", "resnet50"))).note


def test_tokens_are_held_against_tokens_of_sequences_as_long(tmp_path: Path) -> None:
    keys = tuple({"device": "cuda", "data": "synthetic", "precision": "bf16"}.items())
    long = Planted("single", "gpt2", 32, speed=160.0, noise=0.0, keys=keys, tokens=1024)
    read = on(H200, tmp_path, long, replace(long, batch_per_worker=16, tokens=512))
    (pairs,) = references.beside(read).values()
    assert pairs[0].measured.row["configuration"] == named(long)
    assert pairs[0].share == pytest.approx(160 * 1024 * 8 / 3_771_856)


def test_several_workers_are_compared_per_device(tmp_path: Path) -> None:
    eight = replace(RESNET, framework="torch_ddp", workers=8, allreduce="fp32", batch_per_worker=1280, speed=22088.0)
    read = on(H100, tmp_path, eight)
    (first, *_) = references.beside(read)[named(eight)]
    assert (first.reference.figure, first.share, first.differs) == (22088, pytest.approx(1.0), ())


def test_rows_of_a_users_own_stand_beside_the_shipped_ones(tmp_path: Path) -> None:
    own = tmp_path / "mine.csv"
    own.write_text(f"{HEADER}\n{ROW}\n")
    read = on(T4, tmp_path / "study", replace(RESNET, speed=50.0), own=own)
    (pair,) = references.beside(read)[named(RESNET)]
    assert (pair.share, pair.differs) == (pytest.approx(0.5), ("fp16 instead of bf16",))


def test_minutes_are_held_against_trainings_to_the_same_target_on_the_same_data(tmp_path: Path) -> None:
    own, minutes = tmp_path / "mine.csv", "resnet8,fp32,T4,2,1,minutes,all,a page,yes,accuracy=0.6"
    own.write_text(f"{HEADER},target,data\n{minutes},cifar10\n{minutes},imagenet\n")
    one = TrainedIn(Planted("single", "resnet8", 128, keys=(("device", "cuda"),)), [1200, 1200, 1200])
    plant_trained(tmp_path / "study", [one])
    read = renamed(T4, tmp_path / "study", own)
    ((pair,),) = references.beside(read).values()
    assert pair.reference.data == "cifar10" and pair.share == pytest.approx(1.0, abs=0.1), "2 minutes on 1, 1 on 2"
    assert pair.differs == ("1 device instead of 2",)
    listing = references.listing(read)
    assert listing and listing.rows[0][2].endswith("device-minutes to accuracy=0.6 on cifar10")
    assert references.sentence(read, one.configuration) == "", "the answer's number is a rate"


WRONG = [
    ("", ":1: no column model, precision, device, count, figure, unit, of, source, verified: the first line names"),
    (f"{HEADER},speed\n", ":1: column 'speed' is none of model, precision, input,"),
    (HEADER.replace("unit,", "") + "\n", ":1: no column unit: the first line names the columns, of model, precision,"),
    (f"{HEADER},model\n", ":1: column model is given twice"),
    (ROW.replace("images/s", "image/s"), ":2: unit 'image/s' is none of images/s, tokens/s, minutes"),
    (ROW.replace(",100,", ",-100,"), ":2: figure '-100' is no number above 0, such as 2791 or 13.466"),
    (ROW.replace(",100,", ",nan,"), ":2: figure 'nan' is no number above 0"),
    (ROW.replace(",1,", ",0,"), ":2: count '0' is no whole number from 1 on, such as 8"),
    (ROW.replace(",device,", ",each,"), ":2: of 'each' is none of device, all"),
    (ROW.replace("a page", ""), ":2: source is empty: it is needed"),
    (ROW.replace("bf16", ""), ":2: precision is empty: fp32, tf32, bf16, fp16, fp8"),
    (ROW.replace(",yes", ",no"), ":2: what is not verified has its reason in the column doubt"),
    (ROW.replace("images/s", "minutes"), ":2: minutes are of all devices, to a target (accuracy=0.759) on a data set"),
    (ROW + ",more", ":2: more cells than columns: a text with a comma stands in double quotes"),
    (ROW.removesuffix(",yes"), ":2: fewer cells than columns: a text with a comma stands in double quotes"),
    ('"a', ":2: no CSV: unexpected end of data"),
]


@pytest.mark.parametrize(("text", "said"), WRONG, ids=[said for _, said in WRONG])
def test_what_is_wrong_in_a_file_is_named_with_its_line_and_what_would_be_right(
    tmp_path: Path, text: str, said: str
) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(text if not text or text.startswith("model,") else f"{HEADER}\n{text}\n")
    with pytest.raises(StudyError) as caught:
        references.read(path)
    assert str(caught.value).startswith(f"{path}{said}"), caught.value


def test_every_wrong_row_is_named_and_a_file_that_is_none_too(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(f"{HEADER},date,target\n{ROW},soon,\n{ROW},2025-03,\n{ROW},,accuracy=2\n")
    with pytest.raises(StudyError) as caught:
        references.read(path)
    first, second = caught.value.problems
    assert first == f"{path}:2: date 'soon' is no date, such as 2025, 2025-03 or 2025-03-14"
    assert second.startswith(f"{path}:4: target 'accuracy=2' is no target: ")
    path.write_bytes(b"\xff\xfe")
    for other, said in ((path, "no text in UTF-8"), (tmp_path / "none.csv", "No such file or directory")):
        with pytest.raises(StudyError, match=said):
            references.read(other)


def test_the_command_lists_figures_sources_and_what_is_not_verified(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = tmp_path / "mine.csv"
    heard = ROW.replace("T4,1,100", "H100 PCIe,1,9999").removesuffix("yes")
    own.write_text(f"{HEADER},doubt\n{heard}no,only heard of\n")
    assert cli.main(["references", "--model", "resnet50", "--device", "h100 pcie", "--references", str(own)]) == 0
    shown = capsys.readouterr().out
    listed, unsure = shown.split("Not verified, and set beside nothing:")
    assert listed.startswith(
        "resnet50, 224 px\n  1,866 images/s, 1 × H100 PCIe of 350 W, fp16, synthetic data, batch 1,280"
    )
    assert "14,713 images/s in total, 8 × H100 PCIe of 350 W" in listed and "9,999" not in listed
    assert "[1] Lambda: https://github.com/lambdal/" in listed
    assert "9,999 images/s" in unsure and "only heard of" in unsure
    assert cli.main(["references", "--model", "resnet5"]) == 2
    assert "no reference is of model resnet5 on device any: there are of gpt2," in capsys.readouterr().err


def test_what_is_not_verified_stands_beside_nothing(tmp_path: Path) -> None:
    own = tmp_path / "mine.csv"
    own.write_text(f"{HEADER},doubt\n{ROW.removesuffix('yes')}no,only heard of\n")
    assert not references.beside(on(T4, tmp_path / "study", RESNET, own=own))


def test_a_wrong_file_stops_a_report_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = tmp_path / "mine.csv"
    own.write_text(f"{HEADER}\n{ROW.replace('images/s', 'furlongs')}\n")
    study = plant(tmp_path / "study", [RESNET])
    before = sorted(study.rglob("*"))
    for command in ("report", "tables"):
        assert cli.main([command, str(study), "--references", str(own)]) == 2
        error = capsys.readouterr().err
        assert error == f"error: {own}:2: unit 'furlongs' is none of images/s, tokens/s, minutes\n"
    assert sorted(study.rglob("*")) == before


def test_the_stored_record_of_a_gpu_has_its_references() -> None:
    read = results.read(example("one-gpu"))
    slow = ": slow compute, whose scaling would look better than that of a tuned run; "
    peaks, references = answer.fastest(read, "resnet50").note.split(slow)
    assert peaks == "21 % of its GPU's measured peak, 16 % of its data sheet's"
    assert references.startswith("130 % of 4,868 images/s a device (milabench")
    peaks, references = answer.fastest(read, "gpt2").note.split(slow)
    assert peaks == "18 % of its GPU's measured peak, 14 % of its data sheet's"
    assert references == "35 % of 471,482 tokens/s a device (llm.c, 8 × H100 SXM)"
    assert "a device" not in answer.fastest(read, "vit_small_dataset").note, "nothing is published of it"
