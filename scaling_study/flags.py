"""Fields of a dataclass as flags of a command line, and a script's command line made of them."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable, Sequence
from dataclasses import MISSING, Field, field
from typing import Any

from scaling_study.frameworks import Framework


def flag(name: str) -> str:
    """`batch_per_worker` -> `--batch-per-worker`."""
    return "--" + name.replace("_", "-")


def key(default: Any, help: str, **limits: Any) -> Any:
    """A field: its default, what --help says of it, and its limits (`choices`, `minimum`, `above`, `below`)."""
    return field(default=default, metadata={"help": help, **limits})


def add_flag(group: Any, f: Any, choices: Any = None) -> None:
    """Add the flag of one field, with its help, default and limits, to a group of an argparse parser."""
    default = None if f.default is MISSING else f.default
    help = f.metadata["help"]
    kind = next(k for name, k in (("int", int), ("float", float), ("bool", bool), ("str", str)) if name in str(f.type))
    if kind is bool:
        group.add_argument(flag(f.name), action="store_true", help=help)
    else:
        choices = choices or f.metadata.get("choices")
        default = argparse.SUPPRESS if default is None or f.name == "launcher" else default
        group.add_argument(
            flag(f.name), type=bounded(kind, f.metadata), default=default, choices=choices or None,
            metavar=None if choices else kind.__name__.upper(), help=help,
        )  # fmt: skip


def add_rank_flags(parser: argparse.ArgumentParser, launchers: Sequence[str]) -> None:
    """What a rank is told on its command line by one of `launchers`, or by a person in its place."""
    if "deepspeed" in launchers:  # it passes what LOCAL_RANK says too
        parser.add_argument("--local_rank", "--local-rank", type=int, default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    if "torchrun" in launchers:
        add_rendezvous(parser)


def add_rendezvous(parser: argparse.ArgumentParser) -> None:
    """Where ranks meet that are started by hand, one by one (worker/rendezvous.py)."""
    group = parser.add_argument_group("joining the other ranks, where no launcher starts them")
    group.add_argument(
        "--dist-url", metavar="URL", default=argparse.SUPPRESS,
        help="where rank 0 listens: tcp://HOST:PORT, or env://, which reads MASTER_ADDR, MASTER_PORT, WORLD_SIZE, RANK",
    )  # fmt: skip
    for name, what in (("world_size", "how many ranks there are"), ("rank", "which of them this is, from 0")):
        group.add_argument(flag(name), type=int, metavar="INT", default=argparse.SUPPRESS, help=what)


def bounded(kind: type, limits: Any) -> Any:
    """An argparse type that also checks a field's limits (`minimum`, `above`, `below`)."""

    def convert(text: str) -> Any:
        value = kind(text)
        if kind is float and not math.isfinite(value):
            raise argparse.ArgumentTypeError(f"{text} is not a finite number")
        if "minimum" in limits and value < limits["minimum"]:
            raise argparse.ArgumentTypeError(f"{text} is less than {limits['minimum']}")
        if "below" in limits and value >= limits["below"]:
            raise argparse.ArgumentTypeError(f"{text} is not below {limits['below']}")
        if "above" in limits and value <= limits["above"]:
            raise argparse.ArgumentTypeError(f"{text} is not above {limits['above']}")
        return value

    convert.__name__ = kind.__name__
    return convert


def command_line(table: Framework, keys: Iterable[Field[Any]], window: Iterable[Field[Any]]) -> argparse.ArgumentParser:
    """Of a framework's script: a flag for each of these trial keys, and for each field of the timed window."""
    result = argparse.ArgumentParser(
        description=f"{'Train and measure with' if table.trains else 'Measure'} {table.title}.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    trial = result.add_argument_group("the trial")
    trained = result.add_argument_group("training to a result, instead of timing") if table.trains else trial
    for f in keys:
        choices = table.axes[f.name] or f.metadata.get("choices")
        add_flag(trained if f.name.startswith("train_") else trial, f, choices=choices)
    timed = result.add_argument_group("the timed window")
    timed.add_argument(
        "--steps", type=bounded(int, {"minimum": 1}), metavar="INT", default=argparse.SUPPRESS,
        help="time exactly this many steps",
    )  # fmt: skip
    for f in window:
        add_flag(timed, f)
    result.add_argument(
        "--record", metavar="FOLDER", default=argparse.SUPPRESS, help="write each rank's measurement here as JSON"
    )
    add_rank_flags(result, table.launchers)
    return result
