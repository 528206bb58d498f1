"""Published throughputs of ResNet-50 on 1 to 8 and on 8 to 3,584 H100s, predicted blind.

The rows are those of STUDIES in analysis/published/references.csv. A prediction sees the rows of the fewest GPUs, data
sheets and the sizes of gradients; nothing is fitted to a row that is predicted. Linear scaling, the rate of one GPU
times the GPUs, stands beside it.

| input | value | source |
|---|---|---|
| images/s on SXM5 and PCIe, batch 1,280 | rows of "1CC H100 80GB SXM5" and "H100 80GB PCIe Gen5" | the rows' sources |
| their framework | PyTorch DDP with AMP, fp32 gradients in buckets of 25 MiB | NVIDIA's DeepLearningExamples |
| images/s of MLPerf | median over epochs (`tracked_stats`), then over the five logs of a result | the rows' sources |
| MLPerf's framework | MXNet with Horovod, fp16 gradients as one group after backward | its `config_DGXH100_*.sh` |
| gradients: bytes, and when | torchvision's ResNet-50, backward by multiplications | published_layers.py |
| backward / forward | 2 | two products of each layer against one |
| NVLink, eight cards of 400 Gbit/s, latencies | machines/dgx-h100.yaml | data sheet; NCCL's src/graph/tuning.cc |
| PCIe 5.0 x16 | 64 GB/s in each direction, 5.7 us | H100 PCIe's data sheet; tuning.cc |
| GPU taken by a collective | 20 of 132 multiprocessors | analysis/prediction/network.py |
| differences between steps and hosts | none | ASSUMED: not published |

MLPerf has no run of one GPU. The two results of four GPUs stand for it, at 816 and 400 images a GPU: the line through
their seconds a step gives the seconds of a step that no image adds (4.4 ms), which is most of a step at 16 images.
Their own communication, over NVLink and below 1 % of a step, stays in.

Not modelled: switches that add up (SHARP, on 512 GPUs and more), BatchNorm over pairs of GPUs (3,584), input pipelines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from analysis.commands import by_name
from analysis.prediction.network import GPU_SHARE, Link, ModelledNetwork
from analysis.prediction.simulate import AFTERWARDS, DDP, Fusion, Step, simulate
from analysis.published import references
from benchmarks import paired, publish
from benchmarks.paired import NOT_COMPARED, Finding
from benchmarks.published_512 import layers

STUDIES = {  # -> words of their source, and the device
    "8 x H100 SXM5": ("lambdal/deeplearning-benchmark/blob/0551cb70", "H100 SXM"),
    "8 x H100 PCIe": ("lambdal/deeplearning-benchmark/blob/0551cb70", "H100 PCIe"),
    "MLPerf 3.0, H100": ("mlcommons/training_results_v3.0", "H100 SXM"),
}
ALGORITHM = "nccl"


@dataclass(frozen=True)
class Row:
    gpus: int
    batch_per_gpu: int
    images_per_second: float
    given: bool  # an input

    @property
    def step_seconds(self) -> float:
        return self.gpus * self.batch_per_gpu / self.images_per_second


@dataclass(frozen=True)
class Setup:
    """`wire`: bytes on the wire for each of an fp32 gradient."""

    network: ModelledNetwork
    fusion: Fusion
    wire: float


@dataclass(frozen=True)
class Predicted:
    row: Row
    images_per_second: float
    linear: float

    @property
    def error(self) -> float:
        return self.images_per_second / self.row.images_per_second - 1

    @property
    def linear_error(self) -> float:
        return self.linear / self.row.images_per_second - 1

    @property
    def cells(self) -> tuple[str, str, str]:
        """Predicted, its error, and linear scaling's, in words."""
        return f"{self.images_per_second:,.0f}", f"{100 * self.error:+.1f} %", f"{100 * self.linear_error:+.1f} %"


@cache
def setups() -> Mapping[str, Setup]:
    sxm = by_name("dgx-h100")
    pcie = Link(5.7e-6, 1 / 64e9)
    return {
        "8 x H100 SXM5": Setup(sxm, DDP, 1.0),
        "8 x H100 PCIe": Setup(ModelledNetwork(pcie, pcie, 8), DDP, 1.0),
        "MLPerf 3.0, H100": Setup(sxm, AFTERWARDS, 0.5),
    }


def findings() -> list[Finding]:
    """The median error of each study, beside that of linear scaling; no bar."""
    found, shown = [], []
    for study, every in rows().items():
        made = predicted(study, every)
        for one in made:
            row = one.row
            cells = (f"{row.gpus:,}", str(row.batch_per_gpu), f"{row.images_per_second:,.0f}", *one.cells)
            shown.append((study, *cells))
        for whose, errors in (
            ("prediction", [p.error for p in made]),
            ("linear scaling", [p.linear_error for p in made]),
        ):
            median = paired.median_error(errors)
            claim = f"published scaling of ResNet-50, {study}, {len(made)} rows: median error of {whose}"
            evidence = {f"{p.row.gpus} GPUs": error for p, error in zip(made, errors, strict=True)}
            found.append(Finding(claim, median, unit="%", evidence=evidence, control=NOT_COMPARED))
    columns = ("GPUs", "batch", "published images/s", "predicted", "error", "linear scaling's")
    publish.print_table("Published throughputs of ResNet-50, predicted blind", columns, shown)
    return found


def rows() -> dict[str, list[Row]]:
    """Study -> its rows, in the order of the file. Those of its fewest GPUs are inputs."""
    found = {}
    for study, (whose, device) in STUDIES.items():
        ours = [r for r in references.published() if whose in r.source and r.device == device and r.verified]
        rates = [r for r in ours if r.unit == references.IMAGES]
        fewest = min(r.count for r in rates)
        found[study] = [Row(r.count, r.batch or 0, r.figure, r.count == fewest) for r in rates]
    return found


def predicted(study: str, every: Sequence[Row]) -> list[Predicted]:
    """Each row that is no input. Linear scaling starts from the input whose batch is nearest."""
    setup, given = setups()[study], [row for row in every if row.given]
    network = replace(setup.network, gpu_share=GPU_SHARE)
    made = []
    for row in every:
        if not row.given:
            alone = one_gpu(given, row.batch_per_gpu)
            step = simulate(alone, row.gpus, ALGORITHM, network, setup.fusion, setup.wire)
            near = min(given, key=lambda one: abs(one.batch_per_gpu - row.batch_per_gpu))
            linear = row.gpus * near.images_per_second / near.gpus
            made.append(Predicted(row, row.gpus * row.batch_per_gpu / step.step_seconds, linear))
    return made


def one_gpu(given: Sequence[Row], batch: int) -> Step:
    """One GPU's step with `batch` images, from inputs of one batch or on the line through two."""
    first, last = given[0], given[-1]
    seconds = first.step_seconds
    if first.batch_per_gpu != last.batch_per_gpu:
        slope = (first.step_seconds - last.step_seconds) / (first.batch_per_gpu - last.batch_per_gpu)
        seconds += slope * (batch - first.batch_per_gpu)
    backward = 2 * seconds / 3
    gradients = tuple((size, share * backward) for size, share in layers("ResNet-50"))
    return Step(seconds - backward, backward, 0.0, gradients)
