"""Python runs this at its start, where PYTHONPATH has this folder: it waits for torch, and then observes.

A process that never imports torch pays for this file alone. Another sitecustomize, later on the path, runs as ever.
"""

from __future__ import annotations

import os
import sys
from importlib import machinery, util
from typing import Any

FOLDER = "SCALING_STUDY_OBSERVE"
HERE = os.path.dirname(os.path.abspath(__file__))
OBSERVER = "scaling_study.observe"


class Waiting:
    """Stays on sys.meta_path, since libraries look for torch long before they import it (find_spec)."""

    def __init__(self) -> None:
        self.looking = False

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name == "torch" and not self.looking:
            spec = self._elsewhere(name, path, target)
            if spec is not None and spec.loader is not None:
                spec.loader = Loader(spec.loader)
            return spec
        if name == OBSERVER:  # asked for by a script, before torch
            return util.spec_from_file_location(name, os.path.join(os.path.dirname(HERE), "__init__.py"))
        return None

    def _elsewhere(self, *asked: Any) -> Any:
        self.looking = True
        try:
            found = (finder.find_spec(*asked) for finder in sys.meta_path if hasattr(finder, "find_spec"))
            return next((spec for spec in found if spec is not None), None)
        finally:
            self.looking = False


class Absent:
    """The last to be asked: gives `import scaling_study.observe` a parent where scaling_study is not installed."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != "scaling_study":
            return None
        spec = machinery.ModuleSpec(name, None, is_package=True)  # without a loader: a namespace
        spec.submodule_search_locations = []
        return spec


class Loader:
    """Torch's own loader, which then has the process observed."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)

    def create_module(self, spec: Any) -> Any:
        return self.loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        module.__spec__.loader = module.__loader__ = self.loader
        self.loader.exec_module(module)
        try:
            import importlib

            importlib.import_module(f"{OBSERVER}.hooks").attach(module, os.environ[FOLDER])
        except Exception as error:  # a fault of ours must not be one of the training
            print(f"scaling-study: not observed: {error!r}", file=sys.stderr)


def main() -> None:
    if os.environ.get(FOLDER):
        sys.meta_path.insert(0, Waiting())
        sys.meta_path.append(Absent())
    path = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) != HERE]
    others = machinery.PathFinder.find_spec("sitecustomize", path)
    if others is not None and others.loader is not None:
        module = util.module_from_spec(others)
        sys.modules["sitecustomize"] = module
        others.loader.exec_module(module)


if __name__ == "sitecustomize":
    main()
