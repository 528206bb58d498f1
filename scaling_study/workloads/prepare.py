"""Fetch the data before the clock runs: `python -m scaling_study.workloads.prepare cifar10 cola` (so does the driver).

Prints one JSON line: {"cifar10": {"data": "cifar10"}} or {"cifar10": {"data": "synthetic", "why": "..."}}. Exits 1
for damaged data.
"""

from __future__ import annotations

import importlib
import json
import sys

from scaling_study.datasets import FOLDERS, NoData


def main(names: list[str]) -> None:
    print(json.dumps({name: ready(name) for name in names or FOLDERS}))


def ready(name: str) -> dict[str, str]:
    """Make one data set ready; what `auto` means for it."""
    try:
        importlib.import_module(f"scaling_study.workloads.{name}").prepare()
    except NoData as error:
        return {"data": "synthetic", "why": str(error)}
    return {"data": name}


if __name__ == "__main__":
    main(sys.argv[1:])
