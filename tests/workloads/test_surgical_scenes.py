"""Drawn surgical scenes: the same again, each triplet with a look of its own, and the command that writes them."""

from __future__ import annotations

import filecmp
import json
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from tiny_operations import TINY

from scaling_study.workloads.surgical_scenes import __main__ as command
from scaling_study.workloads.surgical_scenes import scene, triplets, write
from scaling_study.workloads.surgical_scenes.triplets import NULL_TARGET, TRIPLETS, maps, named

HEIGHT, WIDTH = 64, 112


def test_triplets_have_the_numbers_of_cholect45() -> None:
    assert len(TRIPLETS) == len(set(TRIPLETS)) == 100
    assert maps().splitlines()[2] == "1,0,2,0,2,0"  # as the data set's own documentation quotes it
    some = {
        0: "grasper,dissect,cystic_plate", 17: "grasper,retract,gallbladder", 40: "bipolar,grasp,specimen_bag",
        65: "scissors,coagulate,omentum", 82: "irrigator,aspirate,fluid", 94: "grasper,null_verb,null_target",
    }  # fmt: skip
    assert {number: named(number) for number in some} == some
    for column, classes in enumerate((triplets.INSTRUMENTS, triplets.VERBS, triplets.TARGETS)):
        assert {triplet[column] for triplet in TRIPLETS} == set(range(len(classes)))


def test_a_frame_depends_on_seed_video_and_number_alone() -> None:
    first, shown = scene.draw(3, 2, 1, HEIGHT, WIDTH)
    again, same = scene.draw(3, 2, 1, HEIGHT, WIDTH)
    assert first.tobytes() == again.tobytes() and shown == same and first.size == (WIDTH, HEIGHT)
    others = {scene.draw(*key, HEIGHT, WIDTH)[0].tobytes() for key in ((4, 2, 1), (3, 1, 1), (3, 2, 2))}
    assert len(others) == 3 and first.tobytes() not in others


def test_frames_have_one_to_three_triplets_of_unlike_instruments_and_targets() -> None:
    counts = Counter[int]()
    for seed in range(300):
        chosen = [TRIPLETS[number] for number in scene.triplets_of(np.random.default_rng(seed))]
        targets = [target for _, _, target in chosen if target != NULL_TARGET]
        assert len({i for i, _, _ in chosen}) == len(chosen) and len(set(targets)) == len(targets)
        counts[len(chosen)] += 1
    assert set(counts) == {1, 2, 3} and min(counts.values()) > 50


@pytest.mark.slow
def test_no_two_triplets_look_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """In one place, by one seed: they differ in a part of the frame that is no speck."""
    pixels = {}
    for number in range(len(TRIPLETS)):
        monkeypatch.setattr(scene, "triplets_of", lambda random, number=number: [number])
        image, (shown,) = scene.draw(0, 0, 0, 32, 56)
        assert shown.triplet == number
        pixels[number] = np.asarray(image, np.int16)
    like = [
        (named(a), named(b))
        for a in pixels
        for b in pixels
        if a < b and (np.abs(pixels[a] - pixels[b]).max(2) > 25).mean() < 0.01
    ]
    assert not like


def test_scenes_are_the_same_by_any_number_of_processes(tmp_path: Path) -> None:
    few, many = tmp_path / "few", tmp_path / "many"
    write(few, TINY, processes=1)
    write(many, TINY, processes=2)
    names = [str(path.relative_to(few)) for path in few.rglob("*") if path.is_file()]
    assert len(names) == 15 + 15 + 4 * 5 + 5 + 1
    assert filecmp.cmpfiles(few, many, names, shallow=False) == (names, [], [])
    assert json.loads((few / "surgical_scenes.json").read_text())["folds"]["2"] == [2]
    with pytest.raises(SystemExit, match=rf"^{few} is there already and not empty: choose another folder$"):
        write(few, TINY)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["few", "many"]


def test_the_command_writes_what_it_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = f"{tmp_path}/new --frames 6 --videos 5 --size 32x56 --seed 2 --processes 1"
    monkeypatch.setattr(sys, "argv", ["scenes", *words.split()])
    command.main()
    assert capsys.readouterr().out == f"10 frames of 5 videos: DATA_PATH={tmp_path}/new\n"
    assert len(list((tmp_path / "new/data").rglob("*.png"))) == 10


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--videos 4", "--videos 4: each of the 5 folds needs one"),
        ("--processes 0", "--processes 0: 1 or more are expected"),
        ("--size 128", "'128' is no HEIGHTxWIDTH of at least 32 pixels, as wide as high or wider: like 128x224"),
    ],
)
def test_the_command_refuses_in_one_line(
    words: str, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["scenes", "nowhere", *words.split()])
    with pytest.raises(SystemExit):
        command.main()
    assert message in capsys.readouterr().err.splitlines()[-1]
