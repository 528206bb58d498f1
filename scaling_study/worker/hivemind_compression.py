"""What Hivemind's gradients are on the wire.                                                                [torch]"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from hivemind.compression import Float16Compression, NoCompression, Uniform8BitQuantization, serialization

ON_THE_WIRE = {"fp16": torch.float16, "int8": torch.uint8}  # any other allreduce: gradients as they are


class Uniform8Bits(Uniform8BitQuantization):
    """Hivemind's, which NumPy 2.4 can no longer read: int() of an array of one."""

    def extract(self, serialized_tensor: Any) -> torch.Tensor:
        size = int(np.frombuffer(serialized_tensor.buffer, count=1, dtype=np.int64)[0])
        codebook = np.frombuffer(serialized_tensor.buffer, offset=8, count=size, dtype=self.codebook_dtype)
        codes = np.frombuffer(serialized_tensor.buffer, offset=8 + codebook.nbytes, dtype=self.indices_dtype)
        places = torch.as_tensor(codes, dtype=torch.int64).reshape(tuple(serialized_tensor.size))
        values = torch.as_tensor(codebook).to(dtype=getattr(torch, serialized_tensor.dtype))
        read: torch.Tensor = values[places].requires_grad_(serialized_tensor.requires_grad)
        return read


serialization._BASE_COMPRESSION_TYPES["UNIFORM_8BIT"] = Uniform8Bits()
COMPRESSION: dict[str, type[Any]] = {
    "fp32": NoCompression, "fp16": Float16Compression, "int8": Uniform8Bits,
}  # fmt: skip
