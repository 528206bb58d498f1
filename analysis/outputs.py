"""Results folder -> results.csv, configurations.csv, tables/ and figures/, replacing what an earlier run left.

Every file is written beside its place and renamed into it, so a reader never meets half a file. Files of ours
that this run no longer makes (a model taken out of the study) are deleted; anybody else's are left alone.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from analysis import communication, figures, gain, layout, memory, results, tables
from analysis.epochs import listing as epochs
from analysis.figures import style
from analysis.names import file_name
from analysis.network import listing as networks
from analysis.pipeline import listing as pipelines
from analysis.results import Results

UNDATED = {"Date": None}  # the same results are the same file
OURS = re.compile(
    r"(throughput|speedup|memory|communication|frameworks|allreduce-gain|pipeline|epochs|network|timelines?)(-.+)?"
    r"\.(md|csv|png|svg)"
)


def write(folder: Path) -> list[Path]:
    """Write everything and return the paths. Raises NotResults or OSError; warns SkippedRecord."""
    read = results.read(folder)
    made = [write_csv(folder / "results.csv", read.trials)]
    shown = read.configurations.drop(columns=["series_order", "batch"])
    made.append(write_csv(folder / "configurations.csv", shown))
    made += write_tables(read, folder / "tables")
    made += write_figures(read, folder / "figures")
    for place in ("tables", "figures"):
        for path in (folder / place).glob("*"):
            if OURS.fullmatch(path.name) and path not in made:
                path.unlink()
    return made


def write_tables(read: Results, folder: Path) -> list[Path]:
    """throughput-<model>, speedup-<model> where there is a baseline, memory-<model> and communication-<model> where
    they were counted, pipeline and epochs where there were some: in Markdown, the numbers in CSV."""
    made = []
    for model in read.models:
        name = file_name(model)
        made.append(write_text(folder / f"throughput-{name}.md", layout.markdown(tables.throughput(read, model))))
        made.append(write_csv(folder / f"throughput-{name}.csv", tables.long(read, model)))
        if read.study.baseline is not None:
            made.append(write_text(folder / f"speedup-{name}.md", layout.markdown(tables.speedup(read, model))))
        of_model = read.configurations[read.configurations.model == model]
        for kind, part in (("memory", memory), ("communication", communication)):
            if (listing := part.listing(read, model)) is not None:
                made.append(write_text(folder / f"{kind}-{name}.md", layout.markdown(listing)))
                made.append(write_csv(folder / f"{kind}-{name}.csv", part.table(of_model)))
    for name, whole in (("pipeline", pipelines), ("epochs", epochs), ("network", networks)):
        if (listing := whole.listing(read)) is not None:
            made.append(write_text(folder / f"{name}.md", layout.markdown(listing)))
            made.append(write_csv(folder / f"{name}.csv", whole.table(read)))
    pairs = gain.table(read.configurations)
    return made + ([write_csv(folder / "allreduce-gain.csv", pairs)] if len(pairs) else [])


def write_figures(read: Results, folder: Path) -> list[Path]:
    """Every figure of the study."""
    return write_drawn(figures.draw(read), folder)


def write_drawn(drawn: Mapping[str, Figure], folder: Path) -> list[Path]:
    """Each figure as PNG, for looking at, and as SVG, for a paper."""
    made = []
    with style.applied():
        for name, figure in drawn.items():
            made.append(_replaced(folder / f"{name}.png", partial(figure.savefig, format="png")))
            made.append(_replaced(folder / f"{name}.svg", partial(figure.savefig, format="svg", metadata=UNDATED)))
    return made


def write_csv(path: Path, frame: pd.DataFrame) -> Path:
    return _replaced(path, lambda temporary: frame.to_csv(temporary, index=False))


def write_text(path: Path, text: str) -> Path:
    return _replaced(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def _replaced(path: Path, write_to: Callable[[Path], object]) -> Path:
    """Write to a temporary file in the same folder, then rename it over `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    os.close(handle)
    try:
        write_to(Path(name))
        os.chmod(name, 0o666 & ~_umask())  # mkstemp makes files that only their owner can read
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return path


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
