"""machines/*.yaml -> MachineFile: the settings of a cluster, kept out of the study file.

    python run_sweep.py sweeps.yaml --machine example          machines/example.yaml
    python run_sweep.py sweeps.yaml --machine ../mine.yaml     any file

The same study then runs on another cluster with another machine file. What decides speed here is part of the id of
each trial: results of one network interface are never taken for those of another.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, field_validator, model_validator

from scaling_study.errors import StudyError, quoted
from scaling_study.hosts.hosts import parse_hosts
from scaling_study.machine import Machine
from scaling_study.settings import CHECKOUT
from scaling_study.study import documents
from scaling_study.study.study import Strict, nearest, validated
from scaling_study.trial import LAUNCHERS
from scaling_study.variables import NAME

FOLDER = "machines"
# Variables of each rank or trial: one value for all of them would be wrong.
NOT_FOR_ALL = (
    *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT"),
    *("TMPDIR", "SCALING_STUDY_RESULTS"),
)
FLAGGED = tuple(name for name in LAUNCHERS if name != "python")  # launchers that take words of their own
DECIDE_SPEED = ("interface", "environment", "flags")  # keys: another value is another machine


def _like(pattern: str, otherwise: str, text: str) -> str:
    """`text`, which must have the pattern. Raises ValueError with `otherwise`."""
    if not re.fullmatch(pattern, text):
        raise ValueError(otherwise)
    return text


ONE_LINE = partial(_like, r"[^\x00-\x08\x0a-\x1f\x7f]*", "must not contain line breaks or control characters")
NAMED = partial(_like, r"[A-Za-z0-9][A-Za-z0-9._-]{0,14}", "an interface is named like eth0 (`ip link` lists them)")
Text = Annotated[str, Field(max_length=4000), AfterValidator(ONE_LINE)]


class WrittenLink(Strict):
    """Bandwidth and latency as a person writes them: `400Gbit`, `5us`."""

    bandwidth: Text  # like 400Gbit
    latency: Text  # like 5us


class Topology(Strict):
    """Hosts for `python -m analysis predict --machine NAME`: a link between two workers of one host, and the host's
    equal cards to the network."""

    workers_per_host: int = Field(ge=1, le=1024)  # workers of one host
    within: WrittenLink | None = None  # link between two workers of a host; needed from two workers on
    cards_per_host: int = Field(default=1, ge=1, le=64)  # network cards of a host, all equal
    card: WrittenLink  # link of one of them

    @model_validator(mode="after")
    def _two_workers_have_a_link(self) -> Topology:
        if self.workers_per_host > 1 and self.within is None:
            raise ValueError(f"{self.workers_per_host} workers a host need `within`: the link between two of them")
        return self


class Gpus(Strict):
    """The GPUs of a host, all alike."""

    count: int = Field(ge=1, le=64)  # GPUs of a host
    name: Text  # of one, as nvidia-smi has it
    memory_gib: float = Field(gt=0, le=1e5)  # memory of one
    tflops: float | None = Field(default=None, gt=0, le=1e6)  # dense peak of one in bf16, by its data sheet
    capability: float | None = Field(default=None, ge=1, le=99)  # compute capability, where the name does not tell it


class Hardware(Strict):
    """One host of a machine, so that a study can be planned for it elsewhere."""

    cores: int = Field(ge=1, le=100_000)  # CPU cores
    cpu: Text  # model of the CPU
    memory_gib: float = Field(gt=0, le=1e6)  # memory of the host
    gpus: Gpus | None = None  # GPUs of the host

    def machine(self, libraries: Mapping[str, str]) -> Machine:
        """This host, with these libraries installed."""
        host = Machine(self.cores, self.cpu, int(self.memory_gib * 2**30), libraries=libraries)
        if not (gpus := self.gpus):
            return host
        return replace(
            host,
            gpus=(gpus.name,) * gpus.count,
            gpu_memory_bytes=int(gpus.memory_gib * 2**30),
            gpu_tflops=gpus.tflops or 0.0,
            gpu_capability=gpus.capability or 0.0,
        )


class MachineFile(Strict):
    """The keys of a machine file. None of them must be given."""

    description: str | None = None  # one sentence for people
    interface: Annotated[str, AfterValidator(NAMED)] | None = None  # network interface, like ib0
    environment: Mapping[str, Text] = Field(default_factory=dict)  # variables of every process
    # words that launchers are given, by launcher
    flags: Mapping[Literal[FLAGGED], list[Text]] = Field(default_factory=dict)  # type: ignore[valid-type]
    price_per_worker_hour: float | None = Field(default=None, ge=0, le=1e6)  # price, in any currency
    slurm: Mapping[Text, Text | int | bool] = Field(default_factory=dict)  # options of sbatch
    setup: list[Text] = Field(default_factory=list)  # shell lines of a batch script, run first
    topology: Topology | None = None  # links, for `scaling-study predict`
    container: Text | None = None  # words before a job's command, like `apptainer exec --nv image.sif`
    hardware: Hardware | None = None  # hardware of each host, for plans that are made elsewhere
    hosts: list[Text] = Field(default_factory=list)  # hosts with their slots, where no option gives others

    @field_validator("environment", mode="before")
    @classmethod
    def _names_and_numbers(cls, value: Any) -> Any:
        """Numbers stand for their text; a name must be one that every shell takes."""
        if not isinstance(value, dict):
            return value
        for name in value:
            if not NAME.fullmatch(name):
                raise ValueError(f"{quoted(name)} is not a variable name: letters, digits and _, no leading digit")
            if name in NOT_FOR_ALL:
                raise ValueError(f"{name} is set for each trial or rank; it cannot be the same for all")
        return {name: str(variable) if type(variable) in (int, float) else variable for name, variable in value.items()}

    @field_validator("slurm")
    @classmethod
    def _time_is_text(cls, value: Mapping[str, Any]) -> Mapping[str, Any]:
        if isinstance(time := value.get("time"), int):
            raise ValueError(f'time is {time}, not a time; in quotes it is one: "2:00:00"')
        return value

    @field_validator("container")
    @classmethod
    def _words(cls, value: str | None) -> str | None:
        shlex.split(value or "")  # which says what is wrong with it
        return value

    @cached_property
    def fingerprint(self) -> str:
        """Names what here decides speed; empty where nothing does."""
        given = {key: value for key in DECIDE_SPEED if (value := getattr(self, key))}
        text = json.dumps({key: dict(v) if isinstance(v, Mapping) else v for key, v in given.items()}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:8] if given else ""

    def machine(self, here: Machine, elsewhere: bool) -> Machine:
        """The machine to plan for: `here`, with the speed of its GPUs where they are this file's hardware.

        `elsewhere`: the plan may be of another machine, and is of this file's hardware where it names other GPUs.
        """
        if not self.hardware:
            return here
        described = self.hardware.machine(here.libraries)
        if described.gpus == here.gpus:
            capability = here.gpu_capability or described.gpu_capability
            return replace(here, gpu_tflops=described.gpu_tflops, gpu_capability=capability)
        return described if elsewhere else here


def find(word: str) -> Path:
    """The file that `--machine word` means. Raises StudyError, naming those there are."""
    if "/" in word or word.endswith((".yaml", ".yml")):
        return Path(word)
    folders = dict.fromkeys((Path(FOLDER).resolve(), CHECKOUT / FOLDER))
    for folder in folders:
        if (path := folder / f"{word}.yaml").is_file():
            return path
    known = sorted({path.stem for folder in folders for path in folder.glob("*.yaml")})
    hint = nearest(word, known) or (f"; there are {', '.join(known)}" if known else "")
    raise StudyError([f"--machine {quoted(word)}: there is no {FOLDER}/{word}.yaml{hint}"])


def load(path: Path) -> MachineFile:
    """Read and validate. Raises StudyError with file and line."""
    document = documents.read(path)
    if not isinstance(document.value, dict):
        raise StudyError([f"{path}:1: a machine file is a mapping; machines/example.yaml shows its keys"])
    file = validated(MachineFile, document, document.value)
    parse_hosts((document.at(("hosts", index)), word) for index, word in enumerate(file.hosts))  # or raises
    return file
