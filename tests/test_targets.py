"""Targets: what is one, and when it is reached."""

from __future__ import annotations

import math

import pytest

from scaling_study.targets import Target, better


@pytest.mark.parametrize("text", ["accuracy=0.6", "loss=1.5", "perplexity=120", "matthews=-0.1"])
def test_a_target_is_written_as_it_is_read(text: str) -> None:
    assert str(Target.parse(text)) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("accuracy=1.2", "a target of accuracy is between 0 and 1"),
        ("accuracy=0", "between 0 and 1"),
        ("loss=-1", "a target of loss is above 0"),
        ("perplexity=1", "above 1"),
        ("matthews=1", "between -1 and 1"),
        (
            "accuracy",
            "is no target: it is one of accuracy, accuracy_top5, loss, perplexity, matthews, ap_heads, ap_i, ap_v, "
            "ap_t, ap_ivt, ap_iv, ap_it, ap_i_of_triplets, ap_v_of_triplets, ap_t_of_triplets, ap_iv_of_triplets, "
            "ap_it_of_triplets, top5_ivt, and a value, like accuracy=0.6",
        ),
        ("f1=0.5", "is no target"),
        ("loss=low", "'low' is no number"),
        ("loss=nan", "above 0"),
    ],
)
def test_what_is_no_target_says_what_would_be(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=r"target|number") as refused:
        Target.parse(text)
    assert message in str(refused.value)


def test_accuracy_is_reached_from_below_and_loss_from_above() -> None:
    assert Target("accuracy", 0.35).reached(0.35) and not Target("accuracy", 0.35).reached(0.3499)
    assert Target("loss", 1.5).reached(1.5) and not Target("loss", 1.5).reached(1.51)
    assert not Target("accuracy", 0.1).reached(math.nan) and not Target("loss", 9.0).reached(math.nan)


def test_the_first_number_is_better_than_none_and_nan_is_never() -> None:
    assert better("accuracy", 0.1, None) and not better("accuracy", math.nan, None)
    assert better("accuracy", 0.2, 0.1) and not better("accuracy", 0.1, 0.1)
    assert better("loss", 0.1, 0.2) and not better("loss", math.nan, 0.2)
