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


TEXT = with_keys(replace(DDP, model="albert_tiny"), sequence_length=64, padding="fixed", data="cola")
TIMED, HOROVOD = Planted("single"), replace(DDP, framework="horovod")
TRAINED = with_keys(TIMED, train_epochs=3)
AIMED = with_keys(DDP, seed=1, train_epochs=3, train_target="accuracy=0.6")
LABELS: dict[str, tuple[list[Planted], set[str]]] = {
    "one stage": ([DDP, FSDP], {"torch_ddp, 2 workers, fp32", "torch_fsdp2, 2 workers, fp16"}),
    "two stages": ([FSDP, replace(FSDP, keys=(("zero_stage", 2),))],
                   {"2 workers, fp16, ZeRO-2", "2 workers, fp16, ZeRO-3"}),
    "precision of both": ([HOROVOD, with_keys(HOROVOD, precision="bf16", controller="mpi")],
                          {"2 workers, fp32 gradients, fp32 compute, controller gloo",
                           "2 workers, fp32 gradients, bf16 compute, controller mpi"}),
    "not what is plain": ([DDP, with_keys(DDP, compile=True), with_keys(DDP, accumulation=2)],
                          {"2 workers, fp32", "2 workers, fp32, compiled", "2 workers, fp32, accumulation 2"}),
    "not what differs between models only": ([DDP, TEXT], {"2 workers, fp32"}),
    "what differs within one": ([DDP, TEXT, with_keys(TEXT, sequence_length=128, padding="dynamic")],
                                {"2 workers, fp32", "2 workers, fp32, 64 tokens, fixed padding",
                                 "2 workers, fp32, 128 tokens, dynamic padding"}),
    "timed and trained": ([TIMED, TRAINED, with_keys(TRAINED, train_schedule="cosine")],
                          {"single", "single, full training", "single, cosine learning rate"}),
    "a target, and no seed": ([DDP, AIMED, with_keys(AIMED, accumulation=2)],
                              {"2 workers, fp32", "2 workers, fp32, run to target", "2 workers, fp32, accumulation 2"}),
    "trainings alone": ([AIMED, with_keys(AIMED, train_epochs=4)],
                        {"2 workers, fp32, 3 epochs of training", "2 workers, fp32, 4 epochs of training"}),
    "a frozen backbone": ([TIMED, with_keys(TRAINED, freeze="backbone")], {"single", "single, backbone frozen"}),
}  # fmt: skip


@pytest.mark.parametrize("what", LABELS)
def test_a_label_says_what_varies_and_no_more(tmp_path: Path, what: str) -> None:
    planted, expected = LABELS[what]
    assert set(labels(tmp_path, *planted)) == expected


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


def test_ten_frameworks_have_a_label_each(tmp_path: Path) -> None:
    planted = ten_frameworks(batches=(32,))
    made = labels(tmp_path, *planted)
    assert len(made) == len(set(made)) == len(planted)
    assert "torch_fsdp2, 2 workers, fp16, ZeRO-3" in made


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
