"""Several configurations in one launch, each built once and measured in turn, as the driver says.          [torch]

    torchrun --standalone --nproc-per-node 2 scaling_study/worker/in_blocks.py LAUNCH.json      (launch/warm_group.py)

    driver --- "build 0" ---> every rank   builds it by its script's own `build`, warms it up; phases, bytes, memory,
                                           unless an earlier launch has looked at these
           --- "block 0" ---> every rank   a step that is not timed (no long one), a barrier, timed steps; then its
                                           report of all blocks so far goes into the trial's folder
           --- "gate 0" ----> every rank   builds it and trains it to its end, as its script would: a parity gate
           --- "leave" -----> every rank   leaves its peers and ends

A rank waits for what is next on a connection of its own, never inside a collective: it may be stopped there, by a
signal that it does not see, for as long as another group's turn lasts. `GlobalState` gives each configuration its own
settings of the process; `Traces` finds what one leaves behind for all.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import math
import os
import random
import runpy
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
import torch.distributed as dist
from torch import overrides
from torch.nn.modules import module as modules
from torch.optim import optimizer as optimizers
from torch.utils import _python_dispatch as dispatch
from torch.utils._device import DeviceContext

from scaling_study.measure import memory, surroundings
from scaling_study.measure.clock import Measurement, measure
from scaling_study.measure.training import now
from scaling_study.ranks import Ranks, as_launched
from scaling_study.records import store
from scaling_study.trial import Trial
from scaling_study.worker.in_turn import IMPORTS
from scaling_study.worker.script import joined, write_error

# --- global state of a process: each configuration of a launch has its own
#
#     before a block   what was so when this configuration was built is put back, its random numbers go on
#     after a block    what the block itself changed is named
#
# A workload that turns TF32 off, or sets the number of threads, would otherwise measure its neighbours.

Setting = tuple[Callable[[], Any], Callable[[Any], object]]  # how it is read, and written


def _of(owner: Any, name: str) -> Setting:
    return lambda: getattr(owner, name), lambda value: setattr(owner, name, value)


# The formats that fp32 is multiplied in, for all and by backend and kind. torch before 2.9 has only older settings.
FORMATS = [
    ("generic", "all"),
    *((backend, kind) for backend in ("cuda", "mkldnn") for kind in ("all", "matmul", "conv", "rnn")),
]
HAS_FORMATS = hasattr(torch._C, "_get_fp32_precision_getter")


def _formats_of_fp32() -> list[str]:
    if not HAS_FORMATS:
        return [torch.get_float32_matmul_precision(), str(torch.backends.cudnn.allow_tf32)]
    return [torch._C._get_fp32_precision_getter(*each) for each in FORMATS]


def _set_formats_of_fp32(formats: list[str]) -> None:
    """By the newer settings, which count; the older are made to agree, as torch refuses to read those that do not."""
    if not HAS_FORMATS:
        torch.set_float32_matmul_precision(formats[0])
        torch.backends.cudnn.allow_tf32 = formats[1] == "True"
        return
    by = dict(zip(FORMATS, formats, strict=True))
    matmul = {by["cuda", "matmul"], by["mkldnn", "matmul"]}
    torch.set_float32_matmul_precision("medium" if "bf16" in matmul else "high" if "tf32" in matmul else "highest")
    torch.backends.cudnn.allow_tf32 = by["cuda", "conv"] == "tf32"
    for each, format in by.items():
        torch._C._set_fp32_precision_setter(*each, format)


def _set_environment(variables: Mapping[str, str]) -> None:
    for name in os.environ.keys() - variables.keys():
        del os.environ[name]
    os.environ.update(variables)


def _set_default_device(device: torch.device) -> None:
    """None is the CPU too, without a mode of torch that looks at every call."""
    torch.set_default_device(None if device.type == "cpu" else device)
    context = torch._GLOBAL_DEVICE_CONTEXT
    if getattr(context, "device_context", device) is None:  # torch 2.8 then fails to say which device is the default
        del context.device_context


def _random_of_gpu() -> torch.Tensor | None:
    """The random state of the GPU that this rank computes on; asking for it elsewhere would take memory of one."""
    return torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None


def _set_random_of_gpu(state: torch.Tensor | None) -> None:
    if state is not None:
        torch.cuda.set_rng_state(state)


SETTINGS: Mapping[str, Setting] = {
    "threads of torch": (torch.get_num_threads, torch.set_num_threads),
    "cores": (lambda: sorted(os.sched_getaffinity(0)), lambda cores: os.sched_setaffinity(0, cores)),
    "default type": (torch.get_default_dtype, torch.set_default_dtype),
    "default device": (torch.get_default_device, _set_default_device),
    "gradients": (torch.is_grad_enabled, torch.set_grad_enabled),
    "anomaly detection": (torch.is_anomaly_enabled, torch.set_anomaly_enabled),
    "autocast on the CPU": (lambda: torch.is_autocast_enabled("cpu"), lambda on: torch.set_autocast_enabled("cpu", on)),
    "autocast on a GPU": (lambda: torch.is_autocast_enabled("cuda"), lambda on: torch.set_autocast_enabled("cuda", on)),
    "deterministic algorithms": (torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms),
    "formats of fp32": (_formats_of_fp32, _set_formats_of_fp32),
    "cuDNN": _of(torch.backends.cudnn, "enabled"),
    "cuDNN's trials": _of(torch.backends.cudnn, "benchmark"),
    "cuDNN's determinism": _of(torch.backends.cudnn, "deterministic"),
    "oneDNN": _of(torch.backends.mkldnn, "enabled"),
    "garbage collector": (gc.get_threshold, lambda thresholds: gc.set_threshold(*thresholds)),
    "environment": (lambda: dict(os.environ), _set_environment),
    "working folder": (os.getcwd, os.chdir),
}
# Drawn from by every step, so a change is no fault; each configuration draws as if it were alone.
GENERATORS: Mapping[str, Setting] = {
    "torch": (torch.get_rng_state, torch.set_rng_state),
    "NumPy": (np.random.get_state, np.random.set_state),
    "Python": (random.getstate, random.setstate),
    "CUDA": (_random_of_gpu, _set_random_of_gpu),
}


class GlobalState:
    """One configuration's, as it was when this was made."""

    def __init__(self) -> None:
        self.settings = {name: read() for name, (read, _) in SETTINGS.items()}
        self.generators = {name: read() for name, (read, _) in GENERATORS.items()}

    def restore(self) -> None:
        """Put it back."""
        for name in changed(self.settings):
            SETTINGS[name][1](self.settings[name])
        for name, state in self.generators.items():
            GENERATORS[name][1](state)

    def leave(self) -> list[str]:
        """Keep the generators for the next time. The settings that have been changed since `restore`, by name."""
        self.generators = {name: read() for name, (read, _) in GENERATORS.items()}
        return changed(self.settings)


def changed(settings: Mapping[str, Any]) -> list[str]:
    """The settings that are no longer so."""
    return [name for name, (read, _) in SETTINGS.items() if read() != settings[name]]


# --- leftovers of a configuration that nobody can take back: its launch then ends
#
#     at once           hooks that every model or optimiser runs, modes of torch, tracers; of a block also exit handlers
#                       and process groups, which building may make
#     block by block    threads, processes and open files that are more after each of several blocks in a row; memory
#                       that has grown by a quarter of a gigabyte

GROWING_BLOCKS = 5  # in a row, after which what grew in each is taken for a leak: pools of threads fill by and by
LEAK_BYTES = 256 << 20  # by which memory has grown over these blocks; a C library keeps half as much of what was freed


class LeftBehind(RuntimeError):
    """A configuration cannot be measured beside others. It says what it left."""


def _hooks(owner: Any, registration: bool = False) -> Callable[[], int]:
    """Counts the hooks that torch keeps in a module for all that it has or (`registration`) registers."""

    def count() -> int:
        hooks = {name: kept for name, kept in vars(owner).items() if name.startswith("_global_") and "_hooks" in name}
        return sum(len(kept) for name, kept in hooks.items() if ("registration" in name) == registration)

    return count


def _processes() -> int:
    count = 0
    for children in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):  # of a thread that has ended meanwhile
            count += len(children.read_text().split())
    return count


def _memory_bytes() -> int:
    """Resident, of this process alone: pages of files that it reads for the first time are no leak."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.partition("RssAnon:")[2].split(maxsplit=1)[0])


def _groups() -> int:
    return len(dist.distributed_c10d._world.pg_map) if dist.is_available() and dist.is_initialized() else 0


AT_ONCE: Mapping[str, Callable[[], int]] = {
    "hooks on every module": _hooks(modules),
    "hooks on every module that is made": _hooks(modules, registration=True),
    "hooks on every optimizer": _hooks(optimizers),
    "modes of torch's functions": lambda: sum(
        not isinstance(mode, DeviceContext) for mode in overrides._get_current_function_mode_stack()
    ),  # of a default device, which is put back
    "modes of torch's dispatcher": lambda: len(dispatch._get_current_dispatch_mode_stack()),
    "tracers": lambda: sum(each is not None for each in (sys.gettrace(), sys.getprofile())),
}
IN_A_BLOCK: Mapping[str, Callable[[], int]] = {  # building, which imports much, may make these
    **AT_ONCE,
    "exit handlers": lambda: int(atexit._ncallbacks()),
    "process groups": _groups,
}
GROWING: Mapping[str, Callable[[], int]] = {
    "threads": lambda: sum(not thread.daemon for thread in threading.enumerate()),
    "processes": _processes,
    "open files": lambda: len(os.listdir("/proc/self/fd")),
}


class Traces:
    """The traces in this process now: counts of hooks, threads, processes and files, and its memory."""

    def __init__(self) -> None:
        self.at_once = {name: count() for name, count in IN_A_BLOCK.items()}
        self.growing = {name: count() for name, count in GROWING.items()}
        self.memory_bytes = _memory_bytes()

    def check_build(self) -> None:
        """Raises LeftBehind for what building has added since."""
        _refuse("building it", [name for name, count in AT_ONCE.items() if count() > self.at_once[name]])


class BlockWatch:
    """Over the blocks of one configuration."""

    def __init__(self) -> None:
        self.blocks = dict.fromkeys(GROWING, 0)  # in a row, in which there came to be more
        self.grown: list[int] = []  # bytes, of blocks in a row in which memory grew

    def check_block(self, before: Traces) -> None:
        """Raises LeftBehind for what is left of a block that began so."""
        now = Traces()
        left = [name for name, count in now.at_once.items() if count > before.at_once[name]]
        for name, count in now.growing.items():
            self.blocks[name] = self.blocks[name] + 1 if count > before.growing[name] else 0
            left += [f"{name}, more with each block"] if self.blocks[name] >= GROWING_BLOCKS else []
        grown = now.memory_bytes - before.memory_bytes
        self.grown = [*self.grown, grown] if grown > 0 else []
        if len(self.grown) >= GROWING_BLOCKS and sum(self.grown) >= LEAK_BYTES:
            left.append(f"memory, {sum(self.grown) >> 20} MiB in {len(self.grown)} blocks")
        _refuse("a block of it", left)


def _refuse(what: str, left: list[str]) -> None:
    if left:
        raise LeftBehind(
            f"{what} leaves behind in its process: {', '.join(left)}. Others would be measured with that: "
            "`interleave: false` gives it separate launches"
        )


# --- the rank

Job = tuple[Trial, Path]  # a configuration, and the folder of its trial


def main(launch: Path) -> None:
    """Serve the driver that left `launch`: `{"address": [host, port], "key": ..., "script": path, "trials":
    [{"trial": trial.json's content, "folder": path}]}`."""
    for name in IMPORTS:  # before this process has its cores alone: groups start side by side
        importlib.import_module(name)
    asked = json.loads(launch.read_text(encoding="utf-8"))
    jobs = [(Trial.from_dict(each["trial"]), Path(each["folder"])) for each in asked["trials"]]
    sys.path.insert(0, str(Path(asked["script"]).parent))
    script = runpy.run_path(asked["script"], run_name="script")
    with (
        joined(script["join"], jobs[0][0], launch.parent) as ranks,
        Connection(socket.create_connection(tuple(asked["address"])).detach()) as driver,
    ):
        say(driver, key=asked["key"], rank=ranks.rank, pid=os.getpid(), host=socket.gethostname())
        Serving(jobs, ranks, script["build"]).until_left(driver)


class Serving:
    """One rank of a launch: what it has built, and what the driver may ask for."""

    def __init__(self, jobs: list[Job], ranks: Ranks, build: Callable[[Trial, Ranks], Any]) -> None:
        self.jobs, self.ranks, self.build_training = jobs, ranks, build
        self.measurements: dict[int, Measurement] = {}
        self.first = GlobalState()  # before anything was built
        self.states: dict[int, GlobalState] = {}  # of each configuration, as it left them
        self.watches: dict[int, BlockWatch] = {}  # over what each leaves behind for good

    def until_left(self, driver: Connection) -> None:
        """Answer each request, `{"do": "block", "trial": 0, ...}`, until there is none or the driver is gone."""
        with surroundings.settled():
            while (asked := json.loads(driver.recv_bytes()))["do"] != "leave":
                answer = getattr(self, asked.pop("do"))
                index = asked.pop("trial")
                try:
                    self.states.get(index, self.first).restore()
                    reply = answer(index, **asked)
                except BaseException as error:
                    write_error(self.jobs[index][1], error)
                    error.written = True  # type: ignore[attr-defined]
                    say(driver, error=f"{type(error).__name__}: {error}")
                    raise
                say(driver, **reply)

    def build(self, index: int, inspect: bool = True) -> Mapping[str, Any]:
        """Build a configuration, warm it up and, if asked to, `inspect` its steps. Seconds of the fastest step, and the
        memory of the process."""
        trial, before = as_launched(self.jobs[index][0], self.ranks), Traces()
        memory.release_workspaces(self.ranks.devices)
        others = memory.held_on(self.ranks.devices)
        measurement = Measurement(self.build_training(trial, self.ranks), trial, self.ranks)
        measurement.memory.beside(others)
        measurement.warm_up()
        before.check_build()
        self.measurements[index], self.states[index], self.watches[index] = measurement, GlobalState(), BlockWatch()
        measurement.inspect() if inspect else measurement.describe()
        surroundings.settle()
        measurement.memory.settle()
        now(*self.ranks.devices)  # before it is stopped
        fastest = min(measurement.warmup_seconds, default=math.inf)  # unknown where nothing was to warm up
        shares = {"resident_bytes": resident_bytes(), "gpu_share": memory.used_share(self.ranks.devices)}
        return {"step_seconds": fastest, "host": socket.gethostname(), **shares}

    def gate(self, index: int) -> Mapping[str, Any]:
        """Build a configuration and train it, as its script would; nothing of it is kept."""
        trial, folder = self.jobs[index]
        trial = as_launched(trial, self.ranks)
        measure(self.build_training(trial, self.ranks), trial, self.ranks, str(folder))
        return {}

    def block(self, index: int, block: int, steps: int, untimed: bool) -> Mapping[str, Any]:
        """So many timed steps after a barrier and, if that is asked for, an `untimed` one. Their seconds, and what they
        changed."""
        measurement, before = self.measurements[index], Traces()
        if block == 0:
            measurement.forget()  # what was timed before blocks began again
        if untimed:
            measurement.step(next(measurement.workload.batches))
        seconds = measurement.timed_block(block, steps)
        self.watches[index].check_block(before)
        changed = self.states[index].leave()
        store.write_rank(self.jobs[index][1], measurement.report())  # now: whatever ends this launch, it is there
        return {"step_seconds": seconds, "changed": changed}


def say(driver: Connection, **what: Any) -> None:
    driver.send_bytes(json.dumps(what).encode())


def resident_bytes() -> int:
    """Memory of this process, of what it has in common with others its share."""
    return int(psutil.Process().memory_full_info().pss)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
