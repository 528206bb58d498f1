"""Fetch the data before the clock runs: `python -m scaling_study.workloads.prepare cifar10 cola` (so does the driver).

Prints one JSON line: {"cifar10": {"data": "cifar10"}} or {"cifar10": {"data": "synthetic", "why": "..."}}. Exits 1
for damaged data.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable

from scaling_study.datasets import FOLDERS, NoData

READERS = {  # data set -> module, and function in it, that makes it ready: verified, downloaded, packed, drawn
    "cifar10": "cifar10:images_and_labels",
    "cola": "cola:sentences",
    "wikitext2": "wikitext2:tokens",
    "wikitext2_bpe": "wikitext2:pair_tokens",  # as many as GPT-2 has; fewer are as they are first read
    "images": "images:prepare",
    "cholect45": "cholect45:prepare",
    "surgical_scenes": "surgical_scenes:written",
}


def main(names: list[str]) -> None:
    """Make the data sets of these names ready, or all that are downloaded."""
    print(json.dumps({name: ready(name) for name in names or FOLDERS}))


def preparing(name: str) -> Callable[[], object]:
    """The function that makes a data set ready, once for the checkout."""
    module, _, function = READERS[name].partition(":")
    prepare: Callable[[], object] = getattr(importlib.import_module(f"scaling_study.workloads.{module}"), function)
    return prepare


def ready(name: str) -> dict[str, str]:
    """Make one data set ready; {"data": what `auto` means for it, "why": if that is another}."""
    try:
        preparing(name)()
    except NoData as error:
        return {"data": "synthetic", "why": str(error)}
    return {"data": name}


if __name__ == "__main__":
    main(sys.argv[1:])
