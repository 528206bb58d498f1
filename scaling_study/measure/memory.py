"""Peak memory of training.                                                                              [torch]

On a GPU: the allocator's own peak over the timed window, resident data included. On a CPU there is no
allocator to ask and the resident set is mostly the libraries (importing them takes five times the state of a
ResNet-18), so the bytes of tensors are counted by kind, each storage once, with what the resident set grew by since
the libraries were imported beside them. Of what is sharded over workers, a worker's own shard counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import psutil
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

Held = dict[str, Iterable[torch.Tensor] | int]  # kind -> its tensors, or its bytes where a library shows no tensors
AT_IMPORT = psutil.Process().memory_info().rss  # scripts import this last: their libraries are in it


class Memory:
    """Enter `watching` around a step, `start` and `stop` around each part of what is timed; then ask what they took."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None,
        device: torch.device,
        held: Callable[[], Held] | None = None,
        further: Sequence[torch.device] = (),
    ) -> None:
        self.model, self.optimizer, self.devices, self.held = model, optimizer, (device, *further), held or dict
        self.on_gpu = device.type == "cuda"
        self.activations = self.gathered = 0
        self.setup_peak_bytes: int | None = None  # of a GPU, before the window
        self._window_peak = 0
        self._others = dict.fromkeys(self.devices, 0)  # bytes that other configurations of this process hold on a GPU
        self._own: dict[torch.device, int] = {}  # and this one between two steps, where there are others

    def beside(self, others: Mapping[torch.device, int]) -> None:
        """Take what the process held before this was built (`held_on`) out of all peaks."""
        self._others |= others

    def settle(self) -> None:
        """Count what is held beyond that now, between two steps, as this one's own, whatever others come to hold."""
        self._own = {device: held - self._others[device] for device, held in held_on(self.devices).items()}

    def start(self) -> None:
        """Begin the window: what was at its most before (the unsharded model, cuDNN's trials) is a peak of its own."""
        self.note_setup()
        if self.on_gpu:
            for device in self.devices:
                torch.cuda.reset_peak_memory_stats(device)
        self._others |= {device: torch.cuda.memory_allocated(device) - own for device, own in self._own.items()}

    def note_setup(self) -> None:
        """Note the peak before the window, at the first call."""
        if self.on_gpu and self.setup_peak_bytes is None:
            self.setup_peak_bytes = self._peak()

    def stop(self) -> None:
        """End the window: what is looked at after it may take more."""
        if self.on_gpu:
            self._window_peak = max(self._window_peak, self._peak())

    def _peak(self) -> int:
        return max(torch.cuda.max_memory_allocated(device) - others for device, others in self._others.items())

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Count what autograd keeps for backward, at its most: the activations.

        They are freed as backward uses them up: of a pipeline the peak is wherever its schedule has the most micro-
        batches under way. A checkpointed block has its own again while its backward runs. Weights that were gathered
        from other workers, which autograd sees too, are counted apart.
        """
        state = {*self._weights(), *_addresses(self.model.buffers())}
        kept = Kept()

        def keep(tensor: torch.Tensor) -> Any:
            if tensor.layout != torch.strided:
                return tensor
            storage = _own(tensor).untyped_storage()
            address = storage.data_ptr()
            if address in state:
                return tensor
            gathered = {at: size for at, size in self._weights().items() if at not in state}
            self.gathered = max(self.gathered, sum(gathered.values()))
            if address in gathered:
                return tensor
            return Saved(tensor, kept, address, storage.nbytes())

        hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda saved: getattr(saved, "tensor", saved))
        with hooks, computed_again(keep):
            yield
        self.activations = max(self.activations, kept.peak)

    def _weights(self) -> dict[int, int]:
        """Where the weights lie now, a sharded framework's gathered ones included: address -> bytes."""
        held = self.held().get("parameters", ())
        return _addresses(self.model.parameters(), () if isinstance(held, int) else held)

    def by_kind(self, alone: bool = True) -> dict[str, int]:
        """Bytes: parameters, gradients, optimizer (its state), buffers, activations; resident (growth since import) of
        a process that it has `alone`.

        Of sharded weights `parameters` is what this worker holds, `gathered` the most that it held beside that.
        `buckets` are what gradients are copied into to be reduced: a framework that has some says so in `held`, and
        so does one that keeps any other kind elsewhere than in the model and the optimiser.
        """
        parameters: list[torch.Tensor] = list(self.model.parameters())
        held = {k: v if isinstance(v, int) else list(v) for k, v in self.held().items()}
        by_kind: dict[str, list[torch.Tensor] | int] = {
            "parameters": parameters,
            "gradients": [p.grad for p in parameters if p.grad is not None],
            "optimizer": _tensors(self.optimizer.state.values()) if self.optimizer else [],
            "buffers": list(self.model.buffers()),
            **held,
        }
        sizes = {kind: size if isinstance(size, int) else _bytes(size) for kind, size in by_kind.items()}
        # freed after a step; at their most there was one for every parameter that this worker holds
        weights = by_kind["parameters"]
        trained = [] if isinstance(weights, int) else [p for p in weights if p.requires_grad]
        sizes["gradients"] = sizes["gradients"] or _bytes(trained)
        resident = {"resident": max(0, psutil.Process().memory_info().rss - AT_IMPORT)} if alone else {}
        gathered = {"gathered": self.gathered} if self.gathered else {}
        return {**sizes, **gathered, "activations": self.activations, **resident}

    def peak_bytes(self) -> int:
        """The allocator's peak in the window, of the device that needed most; on a CPU the tensors of all kinds."""
        if self.on_gpu:
            return self._window_peak
        return sum(size for kind, size in self.by_kind().items() if kind != "resident")


class Kept:
    """Bytes of the storages that autograd holds now, each once however many tensors lie in it, and their peak."""

    def __init__(self) -> None:
        self.holders: dict[int, int] = {}
        self.bytes = self.peak = 0

    def hold(self, address: int, size: int) -> None:
        self.holders[address] = self.holders.get(address, 0) + 1
        if self.holders[address] == 1:
            self.bytes += size
            self.peak = max(self.peak, self.bytes)

    def release(self, address: int, size: int) -> None:
        self.holders[address] -= 1
        if not self.holders[address]:
            del self.holders[address]
            self.bytes -= size


class Saved:
    """A tensor in autograd's keeping. Its graph drops it when it was used, and with it this."""

    __slots__ = ("address", "kept", "size", "tensor")

    def __init__(self, tensor: torch.Tensor, kept: Kept, address: int, size: int) -> None:
        self.tensor, self.kept, self.address, self.size = tensor, kept, address, size
        kept.hold(address, size)

    def __del__(self) -> None:
        self.kept.release(self.address, self.size)


@contextmanager
def computed_again(keep: Callable[[torch.Tensor], Any]) -> Iterator[None]:
    """Have `keep` see too what torch.utils.checkpoint computes again in backward; it is asked nowhere for that."""
    from torch.utils import checkpoint
    from torch.utils._python_dispatch import _disable_current_modes

    theirs: Any = checkpoint._recomputation_hook

    class Seen(theirs):
        def __init__(self, *about: Any) -> None:
            super().__init__(*about)
            pack: Any = vars(self)["pack_hook"]

            def seen(tensor: torch.Tensor) -> Any:
                own: Any = tensor.detach()
                with _disable_current_modes():  # one that replays a forward would look for its operations
                    own.counted = keep(own.detach())  # as long as it lives
                return pack(own)

            seen._checkpoint_internal = True  # type: ignore[attr-defined]
            self.pack_hook = seen

    vars(checkpoint)["_recomputation_hook"] = Seen
    try:
        yield
    finally:
        vars(checkpoint)["_recomputation_hook"] = theirs


def held_on(devices: Iterable[torch.device]) -> dict[torch.device, int]:
    """Bytes that this process's tensors take now on those of the devices that are GPUs; their peak begins anew."""
    gpus = [device for device in devices if device.type == "cuda"]
    for device in gpus:
        torch.cuda.init()  # there is no peak of what was not used yet
        torch.cuda.reset_peak_memory_stats(device)
    return {device: torch.cuda.memory_allocated(device) for device in gpus}


def release_workspaces(devices: Iterable[torch.device]) -> None:
    """cuBLAS has one for a process, made anew by the next product: each that is built then has it, as if alone."""
    if any(device.type == "cuda" for device in devices):
        torch._C._cuda_clearCublasWorkspaces()


def used_share(devices: Iterable[torch.device]) -> float:
    """The share of the fullest GPU's memory that is in use, by whomever; 0 without any GPU among `devices`."""
    pairs = [torch.cuda.mem_get_info(device) for device in devices if device.type == "cuda"]
    return max((1 - free / total for free, total in pairs), default=0.0)


def ddp_buckets(model: DistributedDataParallel) -> int:
    """Bytes of the buckets that DDP's reducer copies gradients into; 0 where gradients are views of their buckets."""
    reducer = model._get_ddp_logging_data()
    sizes = str(reducer.get("rebuilt_bucket_sizes") or reducer["bucket_sizes"])
    return 0 if reducer["gradient_as_bucket_view"] else sum(map(int, sizes.split(",")))


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = value.values()
    return [t for v in value for t in _tensors(v)] if isinstance(value, Iterable) and not isinstance(value, str) else []


def _own(tensor: torch.Tensor) -> torch.Tensor:
    """This worker's shard of a DTensor, and what a collective that is under way will have made; any other as it is."""
    own = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return own.trigger_wait() if hasattr(own, "trigger_wait") else own


def _addresses(*groups: Iterable[torch.Tensor]) -> dict[int, int]:
    """Each storage once: address -> bytes."""
    return {s.data_ptr(): s.nbytes() for group in groups for t in group for s in [_own(t).untyped_storage()]}


def _bytes(tensors: Iterable[torch.Tensor]) -> int:
    return sum(_addresses(tensors).values())
