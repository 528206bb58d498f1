"""The data that this machine has, found without torch: the driver needs to know before it plans.

`data: auto` is resolved once for a whole study, so that no repeat trains on something else than another.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import TypeVar
from urllib.request import Request, urlopen

from scaling_study.errors import HostError
from scaling_study.models import PAIR_VOCABULARY
from scaling_study.settings import CACHE, data_path, data_root, require_data_root

T = TypeVar("T")
CONNECT_SECONDS = 20.0
CIFAR10_FOLDER, CIFAR10_ARCHIVE = "cifar-10-batches-py", "cifar-10-python.tar.gz"
COLA_FOLDER = "cola"
# The training sentences: CoLA 1.1 as its archive is unpacked in one way or another, then as GLUE has it.
COLA_FILES = (
    "cola/in_domain_train.tsv",
    "cola/raw/in_domain_train.tsv",
    "cola/cola_public/raw/in_domain_train.tsv",
    "cola_public/raw/in_domain_train.tsv",
    "cola/train.tsv",
)
# Its published development sentences, beside them: as the archive has them, or as GLUE does.
COLA_DEVELOPMENT = (("in_domain_dev.tsv", "out_of_domain_dev.tsv"), ("dev.tsv",))
WIKITEXT2_FOLDER = "wikitext-2"
# The training text, word by word: as its archive is unpacked in one way or another, then as torch's examples have it.
WIKITEXT2_FILES = (
    "wikitext-2/wiki.train.tokens",
    "wikitext-2/wikitext-2/wiki.train.tokens",
    "WikiText2/wikitext-2/wiki.train.tokens",
    "wikitext-2/train.txt",
)
# The published texts that a model is evaluated on, beside it: split -> the names that it may have.
WIKITEXT2_HELD_OUT: Mapping[str, tuple[str, ...]] = {
    "validation": ("wiki.valid.tokens", "valid.txt"),
    "test": ("wiki.test.tokens", "test.txt"),
}


IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg")  # in any case
NO_TREE = "no DATA_PATH is set"  # so there is no folder tree of images; CIFAR-10 takes its place
SCENES = "surgical_scenes"  # drawn by this project, in the layout of CholecT45
SCENES_MARK = "surgical_scenes.json"  # what tells such a folder from CholecT45
SCENES_VERSION = 1  # of what is drawn: scenes of another are drawn anew
NO_SURGERY = "no DATA_PATH holds CholecT45 (data/VIDnn/, triplet/VIDnn.txt); synthetic surgical scenes take its place"


FOLDERS = {
    "cifar10": CIFAR10_FOLDER,
    "cola": COLA_FOLDER,
    **dict.fromkeys(("wikitext2", "wikitext2_bpe"), WIKITEXT2_FOLDER),
}
# What is looked for below DATA_ROOT, by data set: the first of these says that it is there.
LANDMARKS: Mapping[str, tuple[str, ...]] = {
    "cifar10": (CIFAR10_FOLDER, CIFAR10_ARCHIVE),
    "cola": COLA_FILES,
    "wikitext2": WIKITEXT2_FILES,
    "wikitext2_bpe": WIKITEXT2_FILES,
}


class NoData(Exception):
    """Real data that is not there. The message says in one sentence how to get it."""


@dataclass(frozen=True)
class DataSource:
    """The data that `data: auto` means here, and why."""

    name: str  # cifar10, cola, wikitext2, wikitext2_bpe, images, cholect45, surgical_scenes or synthetic
    why: str


def refuse_misplaced(name: str) -> None:
    """Raises HostError where a data set is not in DATA_ROOT, but in the folder above or in one below: it is neither
    downloaded once more nor replaced by synthetic data."""
    root = data_root().resolve()
    with contextlib.suppress(OSError):
        if not _is_in(root, name):
            below = sorted(entry for entry in root.iterdir() if entry.is_dir())
            if found := next((folder for folder in (root.parent, *below) if _is_in(folder, name)), None):
                raise HostError(f"{name} is in {found}, and not in {root}: set DATA_ROOT={found}")


def _is_in(folder: Path, name: str) -> bool:
    return any((folder / landmark).exists() for landmark in LANDMARKS[name])


def _mark(facts: object) -> str:
    """12 hex digits that change when the facts do, so that no stale pack is read."""
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:12]


def _facts(files: Sequence[Path]) -> list[tuple[str, int, int]]:
    return [(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files]


def _first(names: Sequence[str]) -> Path | None:
    """The first of these files that DATA_ROOT has."""
    root = data_root().resolve()
    return next((root / name for name in names if (root / name).is_file()), None)


def _pack(name: str, file: Path | None) -> Path:
    return CACHE / f"{name}-{_mark(_facts([file] if file else []))}"


def cola_file() -> Path | None:
    """The file of training sentences, where there is one."""
    return _first(COLA_FILES)


def wikitext2_file() -> Path | None:
    """The file of the training text, where there is one."""
    return _first(WIKITEXT2_FILES)


def packed_cifar10() -> Path:
    """The file of packed images; its name changes when a file of the archive does."""
    root = data_root().resolve()
    files = sorted((root / CIFAR10_FOLDER).glob("data_batch_*")) or sorted(root.glob(CIFAR10_ARCHIVE))
    facts = [(file.name, *_facts([file])[0][1:]) for file in files]
    return CACHE / f"cifar10-{_mark((str(root), facts))}.npy"


def packed_cola() -> Path:
    """The folder of the tokenised sentences, with the tokeniser beside them."""
    return _pack("cola", cola_file())


def packed_wikitext2() -> Path:
    """The folder of the text as numbers of words, with the words beside it."""
    return _pack("wikitext2", wikitext2_file())


def packed_wikitext2_bpe(vocabulary: int = PAIR_VOCABULARY) -> Path:
    """The folder of the text as numbers of byte pairs, of so many kinds, with the tokenizer beside it."""
    kinds = "" if vocabulary == PAIR_VOCABULARY else f"_{vocabulary}"
    return _pack(f"wikitext2_bpe{kinds}", wikitext2_file())


@contextlib.contextmanager
def filled(folder: Path) -> Iterator[Path | None]:
    """A folder to be filled, which becomes `folder` when that is done; None where `folder` is there already.

    One process of a host has it at a time. Raises OSError.
    """
    from filelock import FileLock  # here: a laptop that only analyses need not have it

    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(str(folder.with_name(f".{folder.name}.lock"))):
        if folder.is_dir():
            yield None
            return
        half = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
        shutil.rmtree(half, ignore_errors=True)
        half.mkdir()
        yield half
        half.replace(folder)


def fetch_archive(data: str, name: str, address: str, members: Sequence[str]) -> Path:
    """Fetch members of a zip archive into a data set's folder, one rank of a host at a time; the first member's file.

    The folder is there whole or not at all. Raises SystemExit for one of the user's own without what is looked for,
    HostError as `refuse_misplaced`, and NoData that says how to get the files by hand.
    """
    folder = data_root() / FOLDERS[data]
    first = folder / Path(members[0]).name
    refuse_misplaced(data)
    if folder.is_dir() and _first(LANDMARKS[data]) is None:  # the user's copy: do not add files to it
        raise SystemExit(f"{name} in {folder} is incomplete (none of {', '.join(LANDMARKS[data])}): download it again")
    require_data_root()
    archived = folder.parent / Path(address).name  # fetched by hand, and not yet unpacked
    try:
        with filled(folder) as half:
            if half:
                if archived.is_file():
                    content = archived.read_bytes()
                else:  # some sites turn away what calls itself Python-urllib
                    request = Request(address, headers={"User-Agent": "scaling-study"})
                    with urlopen(request, timeout=CONNECT_SECONDS) as answer:
                        content = answer.read()
                archive = zipfile.ZipFile(io.BytesIO(content))
                for member in members:
                    (half / Path(member).name).write_bytes(archive.read(member))
    except (OSError, HTTPException, zipfile.BadZipFile, KeyError) as error:
        raise NoData(
            f"{name} is not in {folder.parent} and could not be downloaded ({error}): unpack {address} there, "
            f"or set DATA_ROOT to a folder that holds {folder.name}/{first.name}"
        ) from error
    return first


def packed(folder: Path, make: Callable[[], T], write: Callable[[Path, T], object]) -> T | None:
    """Have `make` and `write` fill a pack's folder, unless it is there; it is there whole or not at all.

    Returns None where the folder can be read, and what was made where it cannot be written: in a read-only checkout
    starts are slower, and data the same.
    """
    if folder.is_dir():
        return None
    try:
        with filled(folder) as half:
            if half:
                write(half, make())
    except OSError:
        return make()
    return None


def cola_development() -> tuple[Path, ...]:
    """The files of the published development sentences, where they lie beside the training sentences; else none."""
    train = cola_file()
    groups = [[train.with_name(name) for name in names] for names in COLA_DEVELOPMENT] if train else []
    return next((tuple(files) for files in groups if all(file.is_file() for file in files)), ())


def wikitext2_held_out() -> dict[str, Path]:
    """The file of each split that is held out, as far as they lie beside the training text."""
    train = wikitext2_file()
    if train is None:
        return {}
    files = ((split, train.with_name(name)) for split, names in WIKITEXT2_HELD_OUT.items() for name in reversed(names))
    return {split: file for split, file in files if file.is_file()}


def packed_held_out(pack: Path, files: Sequence[Path]) -> Path:
    """The folder of encoded held-out data, beside a pack of training data and named by both."""
    return pack.with_name(f"{pack.name}-held_out-{_mark(_facts(files))}")


PACKED: Mapping[str, Callable[[], Path]] = {
    "cifar10": packed_cifar10,
    "cola": packed_cola,
    "wikitext2": packed_wikitext2,
    "wikitext2_bpe": packed_wikitext2_bpe,
}


def surgery_folder() -> Path | None:
    """DATA_PATH, where it holds operations as CholecT45 lays them out, and not scenes that were drawn."""
    folder = data_path()
    there = folder and (folder / "triplet").is_dir() and not (folder / SCENES_MARK).is_file()
    return folder if there else None


def scenes_folder() -> Path:
    """The folder of drawn scenes, made or to be made: in DATA_PATH, in DATA_ROOT, else in the cache."""
    named = [folder for folder in (data_path(), data_root() / SCENES) if folder]
    cache = CACHE / f"{SCENES}-{SCENES_VERSION}"
    return next((folder for folder in named if (folder / SCENES_MARK).is_file()), cache)


def tree_images() -> int | None:
    """The number of images in DATA_PATH/train/<class>/; None where there is no such tree."""
    folder = data_path()
    return sum(is_image(path.name) for path in (folder / "train").glob("*/*")) or None if folder else None


def is_image(name: str) -> bool:
    return name.lower().endswith(IMAGE_SUFFIXES) and not name.startswith(".")  # some systems leave ._1.png beside 1.png


def available() -> dict[str, DataSource]:
    """The meaning of `data: auto` for each data set, without downloading or checking anything.

    One that is not in the answer takes a download to know.
    """
    root, text = data_root(), wikitext2_file()
    images = (root / CIFAR10_FOLDER).is_dir() or (root / CIFAR10_ARCHIVE).is_file()
    files = {"cifar10": images, "cola": cola_file(), "wikitext2": text, "wikitext2_bpe": text}
    there = {name: DataSource(name, f"in {root}") for name, found in files.items() if found}
    there[SCENES] = DataSource(SCENES, f"in {scenes_folder()}")
    surgery = surgery_folder()
    there["cholect45"] = DataSource("cholect45", f"in {surgery}") if surgery else DataSource(SCENES, NO_SURGERY)
    if path := data_path():
        return there | ({"images": DataSource("images", f"in {path}")} if (path / "train").is_dir() else {})
    return there | ({"images": DataSource("cifar10", NO_TREE)} if "cifar10" in there else {})


def prepare(names: Sequence[str]) -> dict[str, DataSource]:
    """Make data ready before any clock runs: verify and pack it once, download it if it is not there.

    Raises HostError. A subprocess does it, so that the driver never imports torch.
    """
    for name in filter(PACKED.__contains__, names):
        require_data_root()
        refuse_misplaced(name)
    lacking = {"images": data_path() is None, "cholect45": surgery_folder() is None}
    for name, other, why in (("images", "cifar10", NO_TREE), ("cholect45", SCENES, NO_SURGERY)):
        if name in names and lacking[name]:
            ready = prepare([one for one in names if one not in (name, other)] + [other])
            instead = ready[other]
            ready[name] = DataSource(instead.name, why if instead.name == other else f"{why}, and {instead.why}")
            return {one: ready[one] for one in names}
    ready = {
        name: DataSource(name, f"in {data_root()}") for name in names if name in PACKED and PACKED[name]().exists()
    }
    if SCENES in names and (scenes_folder() / SCENES_MARK).is_file():
        ready[SCENES] = DataSource(SCENES, f"in {scenes_folder()}")
    if open_ := [name for name in names if name not in ready]:
        shown = SCENES in open_ and sys.stderr.isatty()  # its progress: drawing them takes most of a minute
        done = subprocess.run(
            [sys.executable, "-m", "scaling_study.workloads.prepare", *open_],
            stdout=subprocess.PIPE,
            stderr=None if shown else subprocess.PIPE,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            lines = (done.stderr or "").strip().splitlines()
            raise HostError(lines[-1] if lines else f"preparing {' and '.join(open_)} failed")
        answer = json.loads(done.stdout.splitlines()[-1])
        for name, entry in answer.items():
            where = {"images": data_path(), "cholect45": data_path(), SCENES: scenes_folder()}.get(name, data_root())
            ready[name] = DataSource(entry["data"], entry.get("why", f"in {where}"))
    return ready
