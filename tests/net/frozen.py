"""Makes, stores and compares the regression net: tables of example studies and ids of planned trials, as CSV texts.

tables.json.xz holds {"versions": ..., "examples": {study: {file: text}}, "folders": {"older": {file: text}}, "plans":
{study file: {machine: text}}}. The same texts give the same bytes.
"""

from __future__ import annotations

import csv
import functools
import io
import json
import lzma
import math
import re
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import pandas as pd

from analysis import outputs
from analysis.frames.results import Results
from analysis.report.origins import Origins
from scaling_study.datasets import FOLDERS, SCENES, DataSource
from scaling_study.errors import StudyError
from scaling_study.frameworks import FRAMEWORKS
from scaling_study.machine import Machine
from scaling_study.models import OURS
from scaling_study.settings import CHECKOUT
from scaling_study.study import plan, study
from scaling_study.study.support import ALONE
from tests.net.examples import example, studies
from tests.net.folders import unpacked

PATH = Path(__file__).with_name("tables.json.xz")
NET = "tests/net/tables.json.xz"
COMPUTE = ("numpy", "pandas", "scipy")  # distributions whose versions may change the last digits of a table
NEEDED = {library for table in (*FRAMEWORKS.values(), *OURS.values()) for library in table.needs} | {"torchmetrics"}
MACHINES = {
    "2 cores": Machine(2, "Xeon", 8 << 30, (), dict.fromkeys(sorted(NEEDED), "1")),
    "2 GPUs": Machine(16, "Xeon", 64 << 30, ("Tesla T4",) * 2, dict.fromkeys(sorted(NEEDED), "1")),
    "8 GPUs": Machine(64, "Xeon", 512 << 30, ("NVIDIA H100",) * 8, dict.fromkeys(sorted(NEEDED), "1")),
}
DATA = {
    name: DataSource(name, "present") for name in (*FOLDERS, SCENES, "cholect45", "images")
}  # every data set is there
STUDY_FILES = ["sweeps.yaml", *sorted(f"studies/{path.name}" for path in (CHECKOUT / "studies").glob("*.yaml"))]
Texts = dict[str, str]
FRACTION = re.compile(r"-?\d+\.\d+(e[-+]\d+)?|-?\d+e[-+]\d+")  # what a float is written as; a whole number is none


def versions() -> Texts:
    return {name: metadata.version(name) for name in COMPUTE}


@functools.lru_cache(maxsize=1)
def whole(folder: Path) -> tuple[Results, Origins]:
    """A results folder, with all that is derived from it, as long as no other is asked for."""
    return outputs.read_folder(folder)


def tables(folder: Path) -> Texts:
    """File -> text of results.csv, configurations.csv and tables/*.csv, and the types of their frames' columns."""
    read, _ = whole(folder)
    shown = read.configurations.drop(columns=["series_order", "batch"])
    texts = {
        "results.csv": read.trials.to_csv(index=False),
        "configurations.csv": shown.to_csv(index=False),
        "types of trials": _types(read.trials),
        "types of configurations": _types(read.configurations),
    }
    with tempfile.TemporaryDirectory() as made:
        outputs.write_tables(read, Path(made))
        texts |= {f"tables/{path.name}": path.read_text(encoding="utf-8") for path in sorted(Path(made).glob("*.csv"))}
    return texts


def older() -> Texts:
    """The tables of a record of each form that earlier programs left."""
    with tempfile.TemporaryDirectory() as folder:
        return tables(unpacked("older", Path(folder)))


def _types(frame: pd.DataFrame) -> str:
    return "".join(["column,type\n", *(f"{name},{kind}\n" for name, kind in frame.dtypes.items())])


def plans(study_file: str) -> Texts:
    """Machine -> trials of `--dry-run --json` in their order: id, configuration, and whether it can run there."""
    texts = {}
    for small in (False, True):
        try:
            asked = study.load(CHECKOUT / study_file, small)
        except StudyError as error:
            if "has no `small:` section" not in str(error):
                raise
            continue
        for name, machine in MACHINES.items():
            made = plan.make(asked, machine, DATA, replace(ALONE, hosts=asked.hosts))
            rows = [f"{p.trial.id},{p.trial.configuration},{not p.unsupported}\n" for p in made.trials()]
            texts[f"{name}, --small" if small else name] = "".join(["trial,configuration,runs\n", *rows])
    return texts


@functools.cache
def held() -> dict[str, Any]:
    """The frozen net."""
    return json.loads(lzma.decompress(PATH.read_bytes()))


def made() -> dict[str, Any]:
    """The net as the program in this checkout makes it."""
    return {
        "versions": versions(),
        "examples": {name: tables(example(name)) for name in studies()},
        "folders": {"older": older()},
        "plans": {name: plans(name) for name in STUDY_FILES},
    }


def write(net: Mapping[str, Any]) -> None:
    text = json.dumps(net, sort_keys=True, ensure_ascii=False)
    PATH.write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))


def same_value(before: str, after: str) -> bool:
    """Whether two cells say the same. Fractions may differ beyond their ninth digit: another kind of processor adds in
    another order, and what an iteration ends at differs by as much."""
    if before == after:
        return True
    if not (FRACTION.fullmatch(before) and FRACTION.fullmatch(after)):
        return False
    return math.isclose(float(before), float(after), rel_tol=1e-9, abs_tol=1e-12)


def differences(where: str, before: Texts, after: Texts) -> Iterator[str]:
    """A line for each changed cell, column or file of one study."""
    for name in sorted(before.keys() | after.keys()):
        if name not in before or name not in after:
            yield f"{where}: {name} is {'new' if name in after else 'gone'}"
        elif before[name] != after[name]:
            yield from _cells(f"{where}: {name}", before[name], after[name])


def _cells(where: str, before: str, after: str) -> Iterator[str]:
    old, new = (list(csv.reader(io.StringIO(text))) for text in (before, after))
    heads = (old or [[]])[0], (new or [[]])[0]
    if heads[0] != heads[1]:
        gone, added = ([name for name in one if name not in other] for one, other in (heads, heads[::-1]))
        yield f"{where}: columns gone {gone}, new {added}" if gone or added else f"{where}: order of columns {heads[1]}"
    if old == new:
        yield f"{where}: the text changed, no cell did"
    if len(old) != len(new):
        yield f"{where}: {len(old) - 1} rows before, {len(new) - 1} after"
    for number, (one, other) in enumerate(zip(old[1:], new[1:], strict=False), start=1):
        then, now = dict(zip(heads[0], one, strict=True)), dict(zip(heads[1], other, strict=True))
        for column in then:
            if column in now and not same_value(then[column], now[column]):
                yield f"{where}: row {number} ({one[0]}), {column}: {then[column]!r} before, {now[column]!r} after"
