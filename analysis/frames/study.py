"""The study of a results folder or of a packed study: what its study.json says, and where its results are read from."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from scaling_study.records import manifest, pack, store
from scaling_study.records.manifest import Manifest
from scaling_study.records.pack import PackError


class NotResults(Exception):
    """The folder holds no results of a study. The message is one clear sentence and names the folder."""


class StudyInfo(Manifest):
    """study.json, with the words in which tables and figures tell of it."""

    @property
    def name(self) -> str:
        return self.study

    @property
    def batch_key(self) -> str:
        """The batch size that is held fixed when workers are added: the rows of tables, the x axis of figures."""
        return "global_batch" if self.scaling == "strong" else "batch_per_worker"

    @property
    def baseline_text(self) -> str:
        """`single`, or `horovod, 1 worker, fp32 gradients`: the baseline as a figure's axis names it."""
        keys = dict(self.baseline or {})
        framework = [str(keys.pop("framework"))] if "framework" in keys else []
        workers = [workers_text(int(keys.pop("workers")))] if "workers" in keys else []
        wire = [f"{keys.pop('allreduce')} gradients"] if "allreduce" in keys else []
        return ", ".join(framework + workers + wire + [f"{key}={value}" for key, value in keys.items()])

    @property
    def machine_text(self) -> str:
        """`2 x Tesla T4, 8 cores of Intel Xeon`, or what is known of it."""
        gpus = [str(name) for name in self.machine.get("gpus") or []]
        parts = [f"{gpus.count(name)} × {name}" for name in dict.fromkeys(gpus)]
        cpu = " ".join(str(self.machine.get("cpu") or "").replace("(R)", "").replace("(TM)", "").split())
        if cores := self.machine.get("cores"):
            parts.append(f"{cores} core{'s' * (cores != 1)}" + (f" of {cpu}" if cpu else ""))
        if not gpus:
            parts.append("no GPU")
        return ", ".join(parts) if self.machine else "unknown machine"


def workers_text(workers: int) -> str:
    """`1 worker`, `2 workers`."""
    return "1 worker" if workers == 1 else f"{workers} workers"


def read(results: Path) -> StudyInfo:
    """Raises NotResults if `results` is not a folder with a whole study.json."""
    if not results.is_dir():
        raise NotResults(f"{results} is not a folder" if results.exists() else f"{results} does not exist")
    if not (results / manifest.FILE).exists():
        of = "; a report was written there: give what it is of, a folder or a .study.zip"
        told = of if (results / "report.md").exists() else ""
        raise NotResults(f"{results} is not a results folder: it has no {manifest.FILE}{told}")
    try:
        return StudyInfo.read(results)
    except store.UnreadableRecord as error:
        raise NotResults(str(error)) from error


@dataclass(frozen=True)
class Source:
    """One study's results: `folder` to read, `out` to write to, and `named`, which the user wrote."""

    folder: Path
    out: Path
    named: Path

    def text(self, message: str) -> str:
        """A message with the path that the user wrote."""
        return message if self.folder == self.named else message.replace(str(self.folder), str(self.named))


@contextlib.contextmanager
def opened(results: Path, out: Path | None = None) -> Iterator[Source]:
    """The results in a folder or a packed study, for as long as they are read. Raises NotResults, OSError.

    A packed study is read from a temporary folder, and what is made of it is written beside the file, into X/ of
    X.study.zip. Messages name the file, never the temporary folder.
    """
    if not results.is_file():
        yield Source(results, out or results, results)
        return
    with contextlib.ExitStack() as stack:
        try:
            folder = stack.enter_context(pack.unpacked(results))
        except PackError as error:
            raise NotResults(f"{results} is not a folder, and no packed study: {error}") from error
        source = Source(folder, out or pack.folder_of(results), results)
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                yield source
        except Exception as error:
            error.args = tuple(source.text(part) if isinstance(part, str) else part for part in error.args)
            raise
        finally:
            for warning in caught:
                warnings.warn(source.text(str(warning.message)), warning.category, stacklevel=3)
