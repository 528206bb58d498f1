"""How ranks that a person starts, one on each node, find each other.                                       [torch]

    python data_parallel/torch_ddp.py --dist-url tcp://h1:29500 --world-size 2 --rank 0      on h1
    python data_parallel/torch_ddp.py --dist-url tcp://h1:29500 --world-size 2 --rank 1      on h2

They become the variables that torch's launchers set, so that everything behind them joins as always. They are no trial
keys: who starts a rank, and where, decides nothing about what is trained.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

from scaling_study.flags import add_rendezvous
from scaling_study.ranks import require_rendezvous


def taken(argv: Sequence[str], environment: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """(argv without the flags of a rendezvous, the variables that they mean). Raises SystemExit for what is missing."""
    flags = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    add_rendezvous(flags)
    asked, rest = flags.parse_known_args(argv)
    given = vars(asked)
    if not given:
        return rest, {}
    url = given.pop("dist_url", None)
    if url is None:
        raise SystemExit(f"{_flags(given)} without --dist-url: where do the ranks meet? --dist-url tcp://HOST:PORT")
    told = {"WORLD_SIZE": given.get("world_size"), "RANK": given.get("rank")}
    variables = {name: str(value) for name, value in told.items() if value is not None}
    if url != "env://":
        if missing := [f"--{name.lower().replace('_', '-')}" for name in told if name not in variables]:
            raise SystemExit(f"--dist-url {url} without {' and '.join(missing)}: each rank is told how many there are")
        variables |= _address(url)
    require_rendezvous({**environment, **variables}, f"--dist-url {url}")
    return rest, variables


def _address(url: str) -> dict[str, str]:
    """`tcp://h1:29500` as variables."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:  # of a port that is none
        host = port = None
    if not host or not port or parts.scheme != "tcp" or parts.path.strip("/"):
        raise SystemExit(f"--dist-url {url}: it is tcp://HOST:PORT, like tcp://h1:29500, or env://")
    return {"MASTER_ADDR": host, "MASTER_PORT": str(port)}


def _flags(given: Mapping[str, object]) -> str:
    return " and ".join(f"--{name.replace('_', '-')} {value}" for name, value in given.items())
