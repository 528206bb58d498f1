"""Reproducible scaling studies of distributed training."""

from __future__ import annotations  # a script that imports `observe` may run on Python 3.9

import importlib
import sys
import warnings
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

__version__ = "0.1.0"

# Modules that users' workloads and frameworks import (docs/internals/add-a-workload.md, add-a-framework.md):
# the name before -> the name now.
MOVED = {
    "scaling_study.launch.repeats": "scaling_study.launch.decisions",
    "scaling_study.measure.phases": "scaling_study.measure.training",
    "scaling_study.measure.averaging_rounds": "scaling_study.measure.training",
    "scaling_study.measure.rounds": "scaling_study.measure.training",
    "scaling_study.records.summary": "scaling_study.records.results",
    "scaling_study.worker.fairscale_on_cpu": "scaling_study.worker.script",
    "scaling_study.worker.ddp_settings": "scaling_study.worker.script",
    "scaling_study.workloads.chain": "scaling_study.workloads.workload",
    "scaling_study.workloads.read_ahead": "scaling_study.workloads.feed",
    "scaling_study.workloads.sampling": "scaling_study.workloads.feed",
}


class _Moved:
    """Finds a module of MOVED under its former name, with a DeprecationWarning that says the new one."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        # A loader by what it does: importlib.abc, for its class, takes five milliseconds of every start.
        return ModuleSpec(fullname, self) if fullname in MOVED else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        warnings.warn(f"{spec.name} is now {MOVED[spec.name]}", DeprecationWarning, stacklevel=2)
        module = importlib.import_module(MOVED[spec.name])
        self.own = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self.own  # the import system has set that of the former name


sys.meta_path.append(_Moved())  # last: asked only for what nothing else finds
