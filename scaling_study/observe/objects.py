"""What a script's own objects say of its training: modules, batches, losses, optimisers. Read, and never kept alive.

    Outermost(module).trains(...)     is it called to be trained?
    rows_of_batch, rows_among         samples: the rows of a first tensor, and 0 where they may be none
    value_of, number                  a loss, which a GPU may still compute
    is_another                        does an optimiser exist that has not stepped?

Rows of these are no samples: a list of images (torchvision's detection), a list of dictionaries (detectron2), a
PackedSequence. The samples of a batch of graphs are its graphs, and not their nodes.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import Any
from weakref import ref

from scaling_study.observe.steps import Called


class NoTorch:
    """Stands for torch in a process that says its steps without it."""

    __version__ = ""

    class cuda:
        @staticmethod
        def is_available() -> bool:
            return False

        is_initialized = is_available

    distributed = cuda


class Outermost(Called):
    """A module that is called outermost, and what it was seen to be; it is not kept alive."""

    has_trained = False

    def __init__(self, module: Any) -> None:
        self.module = ref(module)
        self.trainable: Callable[[], Any] = lambda: None  # a parameter that wanted a gradient
        self.training: Callable[[], Any] = lambda: None  # a submodule that was in training mode
        self.sequence_first = any(getattr(part, "batch_first", True) is False for part in module.modules())

    def trains(self, module: Any, is_grad_enabled: Callable[[], bool]) -> bool | None:
        """Whether it is called to be trained; None where no parameter wants a gradient. What was so is looked at first.

        Any submodule in training mode is enough: some wrappers are not, whose model is.
        """
        parameter = self.trainable()
        if parameter is None or not parameter.requires_grad:
            parameter = next((each for each in module.parameters() if each.requires_grad), None)
            self.trainable = ref(parameter) if parameter is not None else lambda: None
        if parameter is None:
            return None
        if not is_grad_enabled():
            return False
        if module.training:
            return True
        part = self.training()
        if part is None or not part.training:
            part = next((each for each in module.modules() if each.training), None)
            self.training = ref(part) if part is not None else lambda: None
        return part is not None


def rate_of(optimizer: Any, torch: Any) -> float | None:
    """Of its first group of parameters; None where reading it would make a GPU wait."""
    rate: Any = optimizer.param_groups[0].get("lr") if optimizer.param_groups else None
    if type(rate) is float:
        return rate
    is_on_gpu = torch.is_tensor(rate) and rate.is_cuda
    return None if rate is None or is_on_gpu else float(rate)


def parameters_of(optimizer: Any) -> list[Any]:
    return [each for group in getattr(optimizer, "param_groups", ()) for each in group.get("params", ())]


def is_another(stepped: Container[Any]) -> bool:
    """True where an optimizer that is none of these trains parameters that none of them does."""
    kind = sys.modules["torch.optim.optimizer"].Optimizer
    every = [each for each in gc.get_objects() if issubclass(type(each), kind)]
    known = {id(each) for optimizer in every if optimizer in stepped for each in parameters_of(optimizer)}
    waiting = (each for optimizer in every if optimizer not in stepped for each in parameters_of(optimizer))
    return any(id(each) not in known and getattr(each, "requires_grad", False) for each in waiting)


def value_of(given: Any, scaled: Any = None) -> Any:
    """The value of the loss that backward is given, or its tensor where reading it would make a GPU wait; None where it
    is not one number. `scaled`: (result of a scaler, its input), which is the loss."""
    loss = first_tensor((given,))
    if scaled is not None and loss is scaled[0]:
        loss = first_tensor((scaled[1],))
    if loss is None or loss.numel() != 1:
        return None
    if hasattr(loss, "placements"):  # a DTensor: to read what is in parts is a collective
        if not all(each.is_replicate() for each in loss.placements):
            return None
        loss = loss.to_local()
    return loss.item() if loss.is_cpu else loss.detach()


def number(loss: Any, is_readable: bool = True) -> float | None:
    """A loss as a number; None where it cannot be read, as one whose memory a CUDA graph has used again."""
    if loss is None or type(loss) is float:
        return loss
    try:
        return float(loss) if is_readable else None
    except Exception:
        return None


def contents(value: Any) -> Any:
    """The values in a tuple, list or mapping. None of a PackedSequence: its rows are no samples."""
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, (tuple, list)) and not hasattr(value, "batch_sizes") else ()


def tensors(values: Any) -> Iterator[Any]:
    """Those in nested tuples, lists and mappings."""
    for value in values:
        if hasattr(value, "requires_grad") and hasattr(value, "dim"):
            yield value
        else:
            yield from tensors(contents(value))


def first_tensor(values: Any) -> Any:
    """None where there is none."""
    return next(tensors(values), None)


def rows_of_batch(batch: Any) -> int:
    """Samples of a batch that is no list of tensors; 0 where they are not known."""
    is_list = isinstance(batch, (tuple, list)) and bool(batch) and not isinstance(batch[0], Mapping)
    values = batch if is_list else (batch,)
    first = first_tensor(values)
    return int(getattr(batch, "num_graphs", 0)) if first is None else rows_among(values, first)


def rows_among(values: Sequence[Any], first: Any) -> int:
    """Rows of the first tensor in `values`. 0 where they may be no samples: it lies in a list of dictionaries with the
    same keys, or of tensors where others have other rows, as a list of images."""
    head = values[0] if first is not None else None
    if isinstance(head, (tuple, list)) and contents(head):
        keys = {tuple(each) if isinstance(each, Mapping) else () for each in head}
        rows = [each.size(0) for each in tensors(values) if each.dim()]
        if (len(keys) == 1 and () not in keys) or len(rows) < 2 or len({*rows}) > 1:
            return 0
    return int(first.size(0)) if first is not None and first.dim() else 0
