"""Fetch the data before the clock runs: `python -m scaling_study.workloads.prepare` (the driver calls it too).

Prints one JSON line: {"data": "cifar10"} or {"data": "synthetic", "why": "..."}. Exits 1 for damaged data.
"""

from __future__ import annotations

import json

from scaling_study.workloads import cifar10


def main() -> None:
    try:
        cifar10.images_and_labels()
    except cifar10.NoData as error:
        print(json.dumps({"data": "synthetic", "why": str(error)}))
        return
    print(json.dumps({"data": "cifar10"}))


if __name__ == "__main__":
    main()
