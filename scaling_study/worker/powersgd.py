"""PowerSGD: a matrix of gradients travels as two thin ones, and what they leave out is added to the next.  [torch]

    M = gradient + what the steps before left out       each worker's own, rows x columns
    P = mean of M Q over the workers, made orthonormal  rows x rank           a first allreduce for each bucket of DDP
    Q = mean of M' P over the workers                   columns x rank        a second one
    gradient = P Q'                                     the same on every worker; it leaves out M - P Q'

One step of power iteration towards the largest singular vectors, which begins with the Q of the step before (Vogels et
al., arXiv 1905.13727, algorithms 1 and 2). Vectors are reduced whole, beside the first product, and so are matrices for
which rank x (rows + columns) is no fewer numbers.

torch's own hook calls collectives from callbacks of earlier ones: over Gloo it hangs as soon as there are two buckets.
This one waits for both, so that nothing of a bucket is hidden behind the rest of backward.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.debugging_hooks import noop_hook
from torch.nn.parallel import DistributedDataParallel

from scaling_study.frameworks import POWERSGD, POWERSGD_HAS_NO_SCALER
from scaling_study.trial import Trial


class PowerSGD:
    """One worker's Q and what was left out so far, of each parameter that is compressed. `seed`: of the first Q, the
    same on every worker."""

    def __init__(self, parameters: Iterable[torch.Tensor], rank: int, seed: int) -> None:
        numbers = torch.Generator().manual_seed(seed)
        self.right: dict[torch.Tensor, torch.Tensor] = {}  # parameter -> Q, columns x rank
        self.left_out: dict[torch.Tensor, torch.Tensor] = {}  # parameter -> rows x columns
        for parameter in parameters:
            rows = len(parameter) if parameter.ndim > 1 else 1
            columns = parameter.numel() // rows
            if parameter.requires_grad and rank * (rows + columns) < rows * columns:
                first = torch.randn(columns, rank, generator=numbers, dtype=torch.float64)
                self.right[parameter] = first.to(parameter)
                self.left_out[parameter] = torch.zeros_like(parameter.detach()).reshape(rows, columns)

    @torch.no_grad()
    def reduce(self, parameters: Iterable[torch.Tensor], gradients: Iterable[torch.Tensor]) -> None:
        """Put the mean over all workers in the place of each gradient. Called by all of them."""
        pairs = list(zip(parameters, gradients, strict=True))
        matrices = [(p, g, g.reshape(len(p), -1) + self.left_out[p]) for p, g in pairs if p in self.right]
        left = [matrix @ self.right[parameter] for parameter, _, matrix in matrices]
        average([*left, *(gradient for parameter, gradient in pairs if parameter not in self.right)])
        left = [torch.linalg.qr(product).Q for product in left]
        right = [matrix.T @ basis for (_, _, matrix), basis in zip(matrices, left, strict=True)]
        average(right)
        for (parameter, gradient, matrix), basis, other in zip(matrices, left, right, strict=True):
            mean = basis @ other.T
            gradient.copy_(mean.view_as(gradient))
            self.right[parameter], self.left_out[parameter] = other, matrix.sub_(mean)

    def held(self) -> dict[str, list[torch.Tensor]]:
        """Its memory, for Training.held."""
        return {"compression": [*self.right.values(), *self.left_out.values()]}

    def state_dict(self) -> dict[str, list[torch.Tensor]]:
        """This worker's own, in the order of the parameters."""
        return {"right": [*self.right.values()], "left_out": [*self.left_out.values()]}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        for kept, values in ((self.right, saved["right"]), (self.left_out, saved["left_out"])):
            kept.update(zip(kept, values, strict=True))


def average(tensors: Sequence[torch.Tensor]) -> None:
    """The mean over all workers of each tensor, in its place: by one allreduce for all of them."""
    if tensors:
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
        dist.all_reduce(flat)
        flat /= dist.get_world_size()
        for tensor, mean in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
            tensor.copy_(mean.view_as(tensor))


# torch reads the annotations of a hook, as types: no text of `from __future__ import annotations`.
def hook(state: PowerSGD, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Reduce a bucket; a future that is complete."""
    state.reduce(bucket.parameters(), bucket.gradients())
    return noop_hook(None, bucket)


def attached(model: DistributedDataParallel, trial: Trial) -> PowerSGD | None:
    """Let DDP reduce so where the trial asks for it; its state then. Raises SystemExit with a scaler of losses."""
    if trial.allreduce not in POWERSGD:
        return None
    if trial.precision == "fp16":
        raise SystemExit(POWERSGD_HAS_NO_SCALER)
    state = PowerSGD(model.parameters(), POWERSGD[trial.allreduce], trial.seed)
    model.register_comm_hook(state, hook)
    return state
