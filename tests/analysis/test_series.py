"""Labels: what varies, in the field's words, and no more."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from planted import Planted, plant, ten_frameworks

from analysis.frames import results
from scaling_study.trial import Trial

DDP = Planted("torch_ddp", workers=2, allreduce="fp32")
FSDP = replace(DDP, framework="torch_fsdp2", allreduce="fp16", keys=(("zero_stage", 3),))


def labels(folder: Path, *planted: Planted) -> list[str]:
    done = results.read(plant(folder, planted)).configurations
    return list(done.sort_values(["model", "series_order"]).series.unique())


def with_keys(one: Planted, **keys: Any) -> Planted:
    return replace(one, keys=(*one.keys, *keys.items()))


def test_a_stage_is_said_where_it_varies(tmp_path: Path) -> None:
    assert labels(tmp_path, DDP, FSDP) == ["torch_ddp, 2 workers, fp32", "torch_fsdp2, 2 workers, fp16"]
    two = replace(FSDP, keys=(("zero_stage", 2),))
    assert labels(tmp_path / "two", DDP, FSDP, two)[1:] == [
        "torch_fsdp2, 2 workers, fp16, ZeRO-2", "torch_fsdp2, 2 workers, fp16, ZeRO-3",
    ]  # fmt: skip
    other = replace(FSDP, framework="deepspeed_zero", keys=(("zero_stage", 1),))
    assert "deepspeed_zero, 2 workers, fp16, ZeRO-1" in labels(tmp_path / "other", FSDP, other)


@pytest.mark.parametrize(
    ("keys", "other", "said"),
    [
        ({"accumulation": 4}, {}, "accumulation 4"),
        ({"compile": True}, {}, "compiled"),
        ({"memory_format": "channels_last"}, {}, "channels_last"),
        ({"image_size": 224}, {"image_size": 64}, "224 px"),
        ({"bucket_bytes": 25 << 20}, {}, "buckets of 25 MiB"),
        ({"learning_rate": 0.1}, {"learning_rate": 0.2}, "learning rate 0.1"),
        ({"seed": 1}, {}, "seed 1"),
        ({"data": "synthetic"}, {}, "synthetic data"),
    ],
)
def test_other_keys_in_the_fields_words(tmp_path: Path, keys: dict[str, Any], other: dict[str, Any], said: str) -> None:
    made = labels(tmp_path, with_keys(DDP, **keys), with_keys(DDP, **other))
    assert f"2 workers, fp32, {said}" in made
    assert len(made) == 2


def test_what_is_plain_is_not_said(tmp_path: Path) -> None:
    made = labels(tmp_path, DDP, with_keys(DDP, compile=True), with_keys(DDP, accumulation=2))
    assert made[0] == "2 workers, fp32"


def test_what_differs_between_models_only_is_not_said(tmp_path: Path) -> None:
    text = with_keys(replace(DDP, model="albert_tiny"), sequence_length=64, padding="fixed", data="cola")
    assert set(labels(tmp_path, DDP, text)) == {"2 workers, fp32"}
    longer = with_keys(text, sequence_length=128, padding="dynamic")
    assert "2 workers, fp32, 128 tokens, dynamic padding" in labels(tmp_path / "two", DDP, text, longer)


def test_ten_frameworks_have_a_label_each(tmp_path: Path) -> None:
    planted = ten_frameworks(batches=(32,))
    made = labels(tmp_path, *planted)
    assert len(made) == len(set(made)) == len(planted)
    assert "torch_fsdp2, 2 workers, fp16, ZeRO-3" in made


def test_what_is_trained_and_what_is_only_timed_lack_each_others_keys(tmp_path: Path) -> None:
    timed, planted = Planted("single"), Planted("single", keys=(("train_epochs", 3),))
    other = Planted("single", keys=(("train_epochs", 3), ("train_schedule", "cosine")))
    plant(tmp_path / "one", [timed, planted])
    plant(tmp_path / "two", [timed, planted, other])
    assert set(results.read(tmp_path / "one").configurations.series) == {"single", "single, full training"}
    both = {"single", "single, full training", "single, cosine learning rate"}
    assert set(results.read(tmp_path / "two").configurations.series) == both


def test_a_training_is_named_by_its_target_where_a_timed_run_has_its_name_and_never_by_its_seed(tmp_path: Path) -> None:
    training = with_keys(DDP, seed=1, train_epochs=3, train_target="accuracy=0.6")
    made = labels(tmp_path, DDP, training, with_keys(training, accumulation=2))
    assert set(made) == {"2 workers, fp32", "2 workers, fp32, run to target", "2 workers, fp32, accumulation 2"}
    assert set(labels(tmp_path / "trainings", training, with_keys(training, train_epochs=4))) == {
        "2 workers, fp32, 3 epochs of training", "2 workers, fp32, 4 epochs of training"
    }  # fmt: skip


def test_a_frozen_backbone_is_told_apart_by_it(tmp_path: Path) -> None:
    frozen = Planted("single", keys=(("train_epochs", 3), ("freeze", "backbone")))
    plant(tmp_path, [Planted("single"), frozen])
    assert set(results.read(tmp_path).configurations.series) == {"single", "single, backbone frozen"}


def test_no_key_is_named_as_it_is_spelled_in_a_study_file() -> None:
    values = {"bool": True, "int": 2, "float": 0.5, "str": "some_kind"}
    spelled = {}
    for field in fields(Trial):
        kind = next((kind for kind in values if kind in str(field.type)), None)
        if kind and "_" in field.name:
            spelled[field.name] = " ".join(results.words({field.name: values[kind]}, [field.name]))
    assert len(spelled) > 40 and not [text for name, text in spelled.items() if name in text]


def test_names_hold_what_varies_and_the_page_says_the_rest_once(tmp_path: Path) -> None:
    one, two = Planted("single"), Planted("torch_ddp", workers=2, allreduce="fp32")
    alike = results.read(plant(tmp_path / "alike", [one, two, replace(two, framework="horovod")]))
    assert set(alike.named.values()) == {"single", "torch_ddp", "horovod"}
    assert alike.constants == ["fp32 compute", "2 workers", "fp32 gradients", "batch per worker 32"]
    half = replace(two, allreduce="fp16", batch_per_worker=64, keys=(("precision", "bf16"),))
    apart = results.read(plant(tmp_path / "apart", [one, two, half]))
    assert {"torch_ddp, fp32 gradients, fp32 compute", "torch_ddp, fp16 gradients, bf16 compute"} <= {
        *apart.named.values()
    }
    assert apart.constants == ["2 workers", "batches per worker"]
