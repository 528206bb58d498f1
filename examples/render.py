"""`make examples`: report.md and a few small figures of each packed study in examples/results, made anew.

    examples/results/X.study.zip        what was measured (docs/reference/record.md, "One file"); never written to
    examples/results/X/report.md        as `python -m analysis report` writes it, with the figures named in FIGURES
    examples/results/X/figures/*.png    those, with fewer pixels and colours

The numbers behind every table, all figures, and report.html come from the command at the end of each page.
"""

from __future__ import annotations

import io
import itertools
import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

import analysis
from scaling_study.records import pack

RESULTS = Path("examples/results")
MOST_FIGURES, MOST_BYTES = 4, 80_000
SHOWN = 0.75  # of the pixels: letters of a figure are then as large as those of the page around it
WIDTHS, COLOURS = (1600, 1400, 1200, 1000, 900, 800), (128, 96, 64, 48)  # tried from the left
WAYS = (Image.Quantize.MEDIANCUT, Image.Quantize.MAXCOVERAGE, Image.Quantize.FASTOCTREE)  # of choosing the colours
FURTHEST, MOST_CHANGED = 40, 0.001  # of 255, in a channel; the share of pixels that may be further off
PICTURE = re.compile(r"!\[.*\]\(figures/(.+)\.png\)\n\n?")
EMPTY = (  # folds, headings and a section of which no picture is shipped
    re.compile(r"<details><summary>.*</summary>\n\n</details>\n\n?"),
    re.compile(r"### .*\n\n(?=#|<details>|\Z)"),
    re.compile(r"## Figures\n\n.*\n\n(?=## |\Z)"),
)
FIGURES = {  # those that the documents show, and those that answer the study's question
    "cifar10-scaling": ("speedup-resnet18", "throughput", "allreduce-gain", "drift"),
    "cifar10deepspeed": ("throughput", "target-vit_small_dataset_tiny", "curves-vit_small_dataset_tiny"),
    "decentralized-100mbit": ("throughput", "waterfall-resnet18"),
    "decentralized-1gbit": ("throughput", "waterfall-resnet18"),
    "decentralized-to-loss": ("target-resnet18", "curves-resnet18", "efficiency-resnet18"),
    "decentralized-unlimited": ("throughput", "waterfall-resnet18"),
    "distributed_dl_fsdp_cpu": ("throughput", "waterfall-resnet8"),
    "distributed_dl_pipeline": ("timelines-transformer_lm_deep", "speedup-transformer_lm_deep", "throughput"),
    "distributed_dl_tripnet": (
        "target-tripnet_efficientnet_lite0",
        "curves-tripnet_efficientnet_lite0",
        "pointing-tripnet_efficientnet_lite0",
        "throughput",
    ),
    "framework-tax": ("throughput", "target-resnet8", "curves-resnet8"),
    "lightning_hydra_timm": ("throughput", "target-timm_vit_tiny", "curves-timm_vit_tiny"),
    "memory-of-sharding": ("throughput",),
    "noise": ("drift", "throughput"),
    "one-gpu": ("throughput", "roofline"),
    "parallelism": ("throughput", "waterfall-llama_tiny"),
    "time-to-60-percent": ("efficiency-resnet8", "target-resnet8", "curves-resnet8", "throughput"),
    "time-to-accuracy": ("efficiency-resnet8", "target-resnet8", "curves-resnet8", "throughput"),
    "w251_hw9": ("throughput", "speedup-resnet18", "target-resnet18", "curves-resnet18"),
}


def main(studies: Sequence[str]) -> None:
    """Render every study, or those that are named."""
    files = sorted(RESULTS.glob(f"*{pack.SUFFIX}"))
    for file in [file for file in files if pack.folder_of(file).name in (studies or FIGURES)]:
        with tempfile.TemporaryDirectory() as made:
            analysis.write(file, out=Path(made), page=True)
            render(Path(made), pack.folder_of(file))
        print(pack.folder_of(file))


def render(made: Path, folder: Path) -> None:
    """From the whole report in `made` what is shipped in `folder`."""
    shown = FIGURES[folder.name][:MOST_FIGURES]
    (folder / "figures").mkdir(parents=True, exist_ok=True)
    for before in (folder / "figures").iterdir():
        before.unlink()
    for name in shown:
        (folder / "figures" / f"{name}.png").write_bytes(small(made / "figures" / f"{name}.png"))
    text = (made / "report.md").read_text(encoding="utf-8")
    text = PICTURE.sub(lambda picture: picture[0] if picture[1] in shown else "", text)
    for empty in EMPTY:
        text = empty.sub("", text)
    (folder / "report.md").write_text(text, encoding="utf-8")


def small(png: Path) -> bytes:
    """The same picture in less than MOST_BYTES. Raises ValueError where that would be hard to read."""
    picture = Image.open(png).convert("RGB")
    for width in WIDTHS:
        scale = min(SHOWN, width / picture.width)
        scaled = picture.resize((round(picture.width * scale), round(picture.height * scale)), Image.Resampling.LANCZOS)
        for colours, way in itertools.product(COLOURS, WAYS):
            fewer, stream = scaled.quantize(colours, way, dither=Image.Dither.NONE), io.BytesIO()
            fewer.save(stream, "PNG", optimize=True)
            if len(stream.getvalue()) < MOST_BYTES and alike(scaled, fewer.convert("RGB")):
                return stream.getvalue()
    raise ValueError(f"{png.name} is not below {MOST_BYTES:,} bytes at any size")


def alike(one: Image.Image, other: Image.Image) -> bool:
    """Whether no two colours of a picture have become one."""
    off = np.abs(np.asarray(one, np.int16) - np.asarray(other, np.int16)).max(axis=2)
    return bool((off > FURTHEST).mean() < MOST_CHANGED)


if __name__ == "__main__":
    main(sys.argv[1:])
