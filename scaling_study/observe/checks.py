"""Do the ranks of a command train one model, on data of their own? Looked at before any step is timed.

    first forward of steps 1 to 5         CRC-32 of the first 4,096 values of its first input
    before steps 1, 3 and 5               norms of up to eight parameters that all ranks should hold alike

`Checks` looks, in a rank, between two steps. What it sees are fields of that step's line:

    {"input": crc, or null where all values are equal,
     "weights": {"norms": [...], "layout": crc of all names and shapes, "model_parallel": ranks that share one sample},
     "unchecked": why nothing more was seen}

`doubts` judges the lines of all ranks, without torch. Weights are looked at before a forward pass, not after an
optimiser step: what a script averages by itself after its optimiser step has been averaged by then. All of it takes 0.2
to 6 ms of CPU time of a process (a linear layer; 24 layers of a Transformer), which no step's seconds contain.

Ranks that each shuffle all of the data by a seed of their own are not told: their batches differ as those of a sampler
do, and which samples are in them only the data set could say.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from weakref import ref

VALUES = 4096  # of an input, and of a parameter, that are looked at
PARAMETERS = 8  # whose norms are kept
WEIGHTS_AFTER = (0, 2, 4)  # steps
SHARDED = "FullyShardedDataParallel"  # torch's first, FairScale's: all parameters below it are shards
SHARDED_TOO = "FSDPModule"  # torch's second: splits its DTensors along the first dimension of their mesh
SHARE = 1e-3  # of what a norm moved: ranks that average differ by less, as rounding is far below
ROUNDING = 1e-9  # of a norm
Lines = Sequence[Mapping[str, Any]]


class Checks:
    """Looks at inputs and weights of one process until `left` is False."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.left = True
        self.step = -1
        self.module: Any = None  # weakly, the first that trained

    def look(self, step: int, module: Any, first: Any) -> dict[str, Any]:
        """Fields of the line of the step that begins, at the first of its outermost training forwards.

        `step`: how many are done; `first`: the first tensor that `module` is given, or None.
        """
        if step == self.step or self.recording():
            return {}
        self.step, self.left = step, step < WEIGHTS_AFTER[-1]
        try:
            self.module = self.module or ref(module)
            with self.torch.no_grad():
                seen: dict[str, Any] = {"input": self._digest(first)}
                trained = self.module()
                if step in WEIGHTS_AFTER and trained is not None:
                    seen["weights"] = self._weights(trained)
                return seen
        except Exception as error:  # such as of a tensor that has no values
            self.left = False
            return {"unchecked": f"{type(error).__name__}: {error}"}

    def recording(self) -> bool:
        """True while a CUDA graph is recorded, which reading a value would break."""
        cuda = self.torch.cuda
        return bool(cuda.is_initialized() and cuda.is_current_stream_capturing())

    def _digest(self, tensor: Any) -> int | None:
        local = None if tensor is None else _local(tensor)
        if local is None or not local.numel():
            return None
        if local.dim():  # whole rows first: what follows may copy them
            local = local[: -(-VALUES * local.shape[0] // local.numel())]
        values = local.reshape(-1)[:VALUES].cpu().contiguous()
        if bool((values == values[0]).all()):
            return None
        return zlib.crc32(bytes(values.view(self.torch.uint8).tolist()))

    def _weights(self, module: Any) -> dict[str, Any]:
        kinds = {kind.__name__ for part in module.modules() for kind in type(part).__mro__}
        names, whole, model_parallel = [], [], 1
        for name, parameter in module.named_parameters():
            if not parameter.requires_grad:
                continue
            is_shard, share = _split(parameter, kinds)
            model_parallel = max(model_parallel, share)
            names.append(name if is_shard else f"{name} {tuple(parameter.shape)}")
            if not is_shard:
                whole.append(_local(parameter))
        chosen = {round(place * (len(whole) - 1) / (PARAMETERS - 1)) for place in range(PARAMETERS)} if whole else ()
        return {
            "norms": [self._norm(whole[place]) for place in sorted(chosen)],
            "layout": zlib.crc32("\n".join(names).encode()),
            "model_parallel": model_parallel,
        }

    def _norm(self, parameter: Any) -> float:
        """The norm of values spread over all of it: the first rows of an embedding may never be used."""
        values = parameter.reshape(-1)
        spread = values[:: max(1, values.numel() // VALUES)]
        return float(self.torch.linalg.vector_norm(spread.cpu().double()))


def _local(tensor: Any) -> Any:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor.detach()


def _split(parameter: Any, kinds: set[str]) -> tuple[bool, int]:
    """(is it a shard, over how many ranks the computation, and not only its state, is split).

    `kinds`: names of the classes of all modules, and of those that they are made of.
    """
    placements = getattr(parameter, "placements", None)
    if placements is None:
        return SHARDED in kinds or hasattr(parameter, "ds_tensor") or not parameter.numel(), 1
    over = [place for place, placement in enumerate(placements) if not placement.is_replicate()]
    computed = over[1:] if SHARDED_TOO in kinds else over
    return bool(over), math.prod(parameter.device_mesh.size(place) for place in computed)


# --- over the ranks, without torch ---

FROM_THE_START = "weights of ranks differ from the start"


def doubts(ranks: Sequence[Lines]) -> Iterator[str]:
    """Reasons to doubt that the ranks of a command train one model on data of their own, a sentence each.

    `ranks`: the lines of each, by rank.
    """
    if len(ranks) < 2:
        return
    for why in dict.fromkeys(line["unchecked"] for lines in ranks for line in lines if "unchecked" in line):
        yield f"whether ranks do equal work was checked only in part: {why}"
    alike: dict[Any, list[int]] = {}  # ranks that hold the same part of a model
    for rank, lines in enumerate(ranks):
        layouts = [line["weights"]["layout"] for line in lines if "weights" in line]
        alike.setdefault(layouts[0] if layouts else None, []).append(rank)
    for group in alike.values():
        if len(group) > 1:
            yield from _of_a_group({rank: ranks[rank] for rank in group}, len(group) == len(ranks))


def _of_a_group(ranks: Mapping[int, Lines], are_all: bool) -> Iterator[str]:
    """Doubts about ranks whose parameters have the same names and shapes."""
    who = "all ranks" if are_all else f"ranks {_and(ranks)}"
    weights = [{line["step"] - 1: line["weights"] for line in lines if "weights" in line} for lines in ranks.values()]
    model_parallel = max((each["model_parallel"] for own in weights for each in own.values()), default=1)
    apart = "" if model_parallel > 1 else _weights_apart(weights)
    if not apart.startswith(FROM_THE_START) and any(map(_averages_rarely, ranks.values())):
        apart = ""
    inputs = {
        rank: {line["step"]: line["input"] for line in lines if line.get("input") is not None}
        for rank, lines in ranks.items()
    }
    seen = sorted(set.intersection(*map(set, inputs.values())))
    rows = {rank: tuple(own[step] for step in seen) for rank, own in inputs.items()}
    if not any(inputs.values()):
        yield f"not checked whether {who} read samples of their own: no input with unlike values was seen"
    elif seen and len({*rows.values()}) * model_parallel < len(rows):
        yield _same_data(rows, who, apart)
        if apart.startswith(FROM_THE_START):
            return
    if apart:
        yield apart


def _same_data(rows: Mapping[int, tuple[int, ...]], who: str, apart: str) -> str:
    """The sentence about ranks of which some have the same inputs. `apart`: the one about their weights."""
    if len({*rows.values()}) > 1:
        twice = next(row for row in rows.values() if [*rows.values()].count(row) > 1)
        who = f"ranks {_and(rank for rank, row in rows.items() if row == twice)}"
    if apart.startswith(FROM_THE_START):
        return (
            f"{who} train on the same data, with weights that differ from the start: parts of one model (tensor "
            "parallel), or are a DistributedSampler and the broadcast of rank 0's weights missing?"
        )
    values = {value for row in rows.values() for value in row}
    if len(values) == 1 and any(len(row) > 1 for row in rows.values()):
        return f"{who} have the same input in every step, a fixed batch: it cannot show if they read their own data"
    return f"{who} train on the same data: is a DistributedSampler missing?"


def _and(ranks: Iterable[int]) -> str:
    """`0, 1 and 3`."""
    *first, last = map(str, ranks)
    return f"{', '.join(first)} and {last}" if first else last


def _weights_apart(ranks: Sequence[Mapping[int, Mapping[str, Any]]]) -> str:
    """The sentence about weights that differ between ranks; empty where they do not, or where none moved.

    `ranks`: step after which weights were looked at -> these, of each rank. Weights that came together once after they
    had moved are sound: a local SGD averages them now and then.
    """
    steps = sorted(set.intersection(*map(set, ranks)))
    if len(steps) < 2:
        return ""
    first, last = steps[0], steps[-1]
    places = range(len(ranks[0][first]["norms"]))
    norms = {step: [[own[step]["norms"][place] for own in ranks] for place in places] for step in steps}
    moved = {step: list(map(_moved, norms[step], norms[first])) for step in steps}
    apart = {step: list(map(_are_apart, norms[step], moved[step])) for step in steps}
    if not any(moved[last]) or any(any(moved[step]) and not any(apart[step]) for step in steps):
        return ""
    if any(apart[first]):
        return f"{FROM_THE_START}: are those of rank 0 broadcast?"
    count, of = sum(apart[last]), sum(far > 0 for far in moved[last])
    if count < of:
        return (
            f"weights of ranks differ after step {last} in {count} of {of} parameters that were looked at: parts of a "
            "model (experts, tensor parallel), or gradients that are not averaged there?"
        )
    return (
        f"gradients are not averaged: weights of ranks differ after step {last}. Local SGD that averages weights less "
        f"often than every {last} steps looks the same"
    )


def _averages_rarely(lines: Lines) -> bool:
    """True where as many bytes as the weights have were exchanged in some steps alone: local SGD, of every H steps."""
    inside: Mapping[str, Any] = next((line["inside"] for line in reversed(lines) if line.get("inside")), {})
    some, steps = inside.get("sent_in") or (0, 0)
    each = (inside.get("allreduce_bytes") or 0) * steps / max(1, some)
    return each >= 2 * (inside.get("parameters") or math.inf)  # 2 bytes: 16 bits


def _moved(now: Sequence[float], then: Sequence[float]) -> float:
    """The distance by which the norm of a parameter moved on the rank where it moved most; 0: none but rounding."""
    distance = max(abs(now[rank] - then[rank]) for rank in range(len(now)))
    return distance if distance > ROUNDING * max(map(abs, now)) else 0.0


def _are_apart(norms: Sequence[float], moved: float) -> bool:
    distance = max(norms) - min(norms)
    return distance > max(ROUNDING * max(map(abs, norms)), SHARE * moved)
