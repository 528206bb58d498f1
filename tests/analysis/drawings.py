"""Studies to draw, and what a person would see on their figures."""

from __future__ import annotations

import functools
import itertools
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from planted import Planted, default_study, plant_gates, published_study, ten_frameworks
from planted_networks import plant_probe
from planted_pipelines import Pipeline, plant_pipelines

from analysis.execution import NOTHING
from analysis.frames import results
from analysis.frames.results import Results
from analysis.show import style
from analysis.views import figures
from scaling_study.records import schema

Study = tuple[list[Planted], Any]
T = TypeVar("T")


def lost(planted: list[Planted], status: str) -> list[Planted]:
    return [replace(one, status=status, speed=None, repeats=1, reason="planted") for one in planted]


def many_workers() -> Study:
    made = []
    for batch, workers in itertools.product((32, 64, 128), (1, 2, 4, 8, 16, 32, 64)):
        for precision in ("none",) if workers == 1 else ("fp32", "fp16"):
            speed = 20_000.0 * workers**0.9
            made.append(Planted("horovod", "resnet8", batch, workers, precision, speed, keys=(("device", "cuda"),)))
    return made, {"baseline": {"workers": 1}}


def many_frameworks() -> Study:
    made = [Planted("single", batch_per_worker=batch, speed=102.0) for batch in (32, 64)]
    for framework, batch, workers in itertools.product(("horovod", "torch_ddp", "torch_fsdp2"), (32, 64), (1, 2, 4)):
        for precision in ("none",) if workers == 1 else ("fp32", "fp16"):
            made.append(Planted(framework, "resnet18", batch, workers, precision, 100.0 * workers**0.9))
    return made, {"baseline": {"framework": "single"}}


def many_seeds() -> Study:
    made = [
        Planted("horovod", "resnet8", batch, 2, precision, 100.0 + seed, keys=(("seed", seed),))
        for batch, precision, seed in itertools.product((32, 64), ("fp32", "fp16"), range(15))
    ]
    return [*made, *lost(made[:20], "oom")], {"baseline": {"workers": 2, "allreduce": "fp32"}}


def implied(study: Study) -> Study:
    """Batches above the first that was out of memory were not run."""
    planted, about = study
    least: dict[Any, int] = {}
    for one in planted:
        if one.status == "oom":
            family = (one.framework, one.model, one.workers, one.allreduce)
            least[family] = min(one.batch_per_worker, least.get(family, one.batch_per_worker))
    made = []
    for one in planted:
        first = least.get((one.framework, one.model, one.workers, one.allreduce), one.batch_per_worker)
        reason = f"{schema.IMPLIED}batch_per_worker={first} was out of memory (the trial)"
        lost = {"status": "oom", "speed": None, "repeats": 1, "reason": reason}
        made.append(replace(one, **lost) if one.batch_per_worker > first else one)
    return made, about


def early_oom() -> Study:
    """The published study on GPUs of less memory."""
    planted, about = published_study()
    small = {("resnet50", 2, "fp32"): 128, ("resnet50", 2, "fp16"): 256, ("resnet50", 1, "none"): 512}
    small |= {("resnet18", 2, "fp16"): 1024}
    made = []
    for one in planted:
        if one.batch_per_worker >= small.get((one.model, one.workers, one.allreduce), 10_000):
            one = replace(one, status="oom", speed=None, repeats=1, reason="CUDA out of memory")
        made.append(one)
    return implied((made, about))


def strong() -> Study:
    made = [
        Planted("horovod", "resnet18", batch // workers, workers, precision, 100.0 * workers**0.8)
        for batch, workers in itertools.product((64, 128), (1, 2, 4))
        for precision in (("none",) if workers == 1 else ("fp32", "fp16"))
    ]
    return made, {"baseline": {"workers": 1}, "scaling": "strong"}


def changed(change: Callable[[list[Planted]], list[Planted]], study: Study | None = None) -> Study:
    planted, about = study or default_study()
    return change(planted), about


STUDIES: dict[str, Study] = {
    "default": default_study(),
    "synthetic": default_study(synthetic=True),
    "published": published_study(),
    "implied": early_oom(),
    "empty": ([], {}),
    "one trial": ([Planted()], {"baseline": {"framework": "single"}}),
    "one batch": changed(lambda all: [one for one in all if one.batch_per_worker == 32]),
    "one model": changed(lambda all: [one for one in all if one.model == "resnet8"]),
    "one worker count": changed(lambda all: [one for one in all if one.workers == 2]),
    "one repeat": changed(lambda all: [replace(one, repeats=1) for one in all]),
    "two repeats": changed(lambda all: [replace(one, repeats=2) for one in all]),
    "wide": changed(lambda all: [replace(one, noise=0.25) for one in all]),
    "all failed": changed(lambda all: lost(all, "failed")),
    "unsupported": changed(lambda all: [*all[:2], *lost(all[2:], "unsupported")]),
    "baseline failed": changed(lambda all: [*lost(all[:1], "oom"), *all[1:]]),
    "published lost": changed(lambda all: lost(all, "timeout"), published_study()),
    "many workers": many_workers(),
    "many frameworks": many_frameworks(),
    "strong": strong(),
    "ten frameworks": (ten_frameworks(), {"baseline": {"framework": "single"}}),
    "ten on two models": (
        ten_frameworks(("resnet8", "albert_tiny"), precisions=("fp32", "bf16", "fp16")),
        {"baseline": {"framework": "single"}},
    ),
    "twelve lines": ([one for one in ten_frameworks(precisions=("fp32",)) if one.workers == 2], {}),
    "twelve points": (ten_frameworks(batches=(32,), precisions=("fp32",))[:12], {"baseline": {"framework": "single"}}),
    "many seeds": many_seeds(),
    "long names": changed(
        lambda all: [replace(one, model=f"some-organisation/{one.model}-with-a-name") for one in all]
    ),
    "not powers of two": changed(lambda all: [replace(o, batch_per_worker=b) for o in all[:4] for b in (96, 100, 104)]),
}


CUT = (0.24, 0.21, 0.48, 0.07)
PIPELINES: dict[str, list[Pipeline]] = {  # beside what STUDIES has under the same name
    "pipelines": [
        Pipeline("gpipe", p=2, m=4), Pipeline("1f1b", p=2, m=16), Pipeline("1f1b", p=4, m=8, shares=CUT, transfer=1e-3),
        Pipeline("interleaved_zero_bubble", p=4, m=8), Pipeline("looped_bfs", p=2, m=8, v=2),
        Pipeline(None, p=2, m=1, framework="naive_model_parallel"),
        Pipeline(None, p=2, m=4, framework="fairscale_pipe"), Pipeline("1f1b", p=2, m=4, replicas=2, batch=8),
        Pipeline("1f1b", p=2, m=8, speed=None, status="oom"),
    ],
    "one pipeline": [Pipeline("gpipe", p=1, m=1)],
}  # fmt: skip
TEXT = Planted("single", "transformer_lm", 16, speed=80.0, tokens=35)
STUDIES |= {"pipelines": ([TEXT], {"baseline": {"framework": "single"}}), "one pipeline": ([], {})}

NETWORKS: dict[str, list[dict[str, Any]]] = {  # likewise, planted_networks.plant_probe's arguments
    "networks": [
        {}, {"launcher": "mpirun", "noise": 0.5}, {"launcher": "horovodrun", "controller": "gloo", "offset": 1e-3},
        {"launcher": "horovodrun", "controller": "mpi", "repeats": 3, "between": 0.3},
    ],
    "one network": [{"repeats": 3, "workers": 64, "hosts": 8}],
}  # fmt: skip
STUDIES |= {"networks": default_study(), "one network": ([], {})}

FAULTS = {"ten frameworks": {"horovod": "loss of every step: off by 1.2e-03 at step 2"}}  # who fails parity


class Figures(Mapping[str, Figure]):
    """File name without its ending -> figure, each drawn when it is first asked for; of the kinds that begin so."""

    def __init__(self, read: Results, *kinds: str) -> None:
        self._read, self._drawn = read, dict[str, Figure]()
        self._kinds = {name: make for name, make in figures.figure_kinds(read) if name.startswith(kinds or "")}

    def _draw(self, kind: str) -> None:
        with style.applied():
            self._drawn |= figures.figures_of_kind(kind, self._kinds.pop(kind), self._read, NOTHING)

    def __getitem__(self, name: str) -> Figure:
        for kind in [kind for kind in self._kinds if f"{name}-".startswith(f"{kind}-")]:
            self._draw(kind)
        return self._drawn[name]

    def __iter__(self) -> Iterator[str]:
        for kind in tuple(self._kinds):
            self._draw(kind)
        return iter(self._drawn)

    def __len__(self) -> int:
        return len(tuple(iter(self)))


@functools.cache
def drawn(name: str) -> Figures:
    """The figures of one of STUDIES, each drawn once for all tests."""
    planted, about = STUDIES[name]
    with tempfile.TemporaryDirectory() as folder:
        plant_pipelines(Path(folder), PIPELINES.get(name, []), planted, **about)
        for probe in NETWORKS.get(name, []):
            plant_probe(Path(folder), **probe)
        if name in FAULTS:
            plant_gates(Path(folder), planted, FAULTS[name])
        return Figures(results.read(Path(folder)))


def drawn_by(draw: Callable[..., T], *asked: Any) -> T:
    """What one view draws of a study, or of one of its models."""
    with style.applied():
        return draw(*asked)


def ticks_out_of_view(figure: Figure) -> set[Text]:
    """Tick labels that exist but are not drawn, because their tick lies beyond the axis."""
    unseen = set()
    for panel in figure.axes:
        for axis in (panel.xaxis, panel.yaxis):
            low, high = sorted(axis.get_view_interval())
            ticks = [*axis.get_major_ticks(), *axis.get_minor_ticks()]
            unseen |= {t.label1 for t in ticks if not low - 1e-9 <= t.get_loc() <= high + 1e-9}
    return unseen


@functools.cache
def texts(figure: Figure) -> list[tuple[str, Any]]:
    """(text, box in pixels) of every text that is shown, laid out once a figure."""
    with style.applied():
        canvas = FigureCanvasAgg(figure)
        figure.draw_without_rendering()  # all is laid out, no pixel is coloured
        found = []
        unseen = ticks_out_of_view(figure)
        for artist in figure.findobj(Text):
            if artist.get_visible() and artist.get_text().strip() and artist not in unseen:
                box = Text.get_window_extent(artist, canvas.get_renderer())
                found.append((artist.get_text(), box))
    return found


def shown(figure: Figure) -> str:
    """All its texts, wherever their lines end."""
    return " ".join(" ".join(text.split()) for text, _ in texts(figure))


def rows_of(axis: Axes) -> dict[str, str]:
    """Name -> text beside it, of the rows of a dot plot, from the top."""
    names = [label.get_text().replace("\n", " ") for label in axis.get_yticklabels()]
    return dict(zip(names, (text.get_text() for text in axis.texts), strict=True))


def dots_of(axis: Axes) -> list[float]:
    """The values of a dot plot, from the top."""
    points = [line for line in axis.lines if len(line.get_xdata()) == 1 and line.get_marker() in "osD"]
    return [float(line.get_xdata()[0]) for line in points]


def untidy(figure: Figure) -> list[str]:
    """What is wrong with how its text lies: each one that is cut, each two that touch."""
    found, (width, height) = texts(figure), figure.bbox.size
    said = [f"{text!r} is cut" for text, box in found if min(box.x0, box.y0) < 0 or box.x1 > width or box.y1 > height]
    for (one, a), (other, b) in itertools.combinations(found, 2):
        across, along = min(a.x1, b.x1) - max(a.x0, b.x0), min(a.y1, b.y1) - max(a.y0, b.y0)
        # Boxes hold room for descenders: half a pixel at 100 dpi is no contact of ink.
        if across > 0.5 and along > 0.5:
            said.append(f"{one!r} touches {other!r}")
    return said
