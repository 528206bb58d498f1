"""timm's vision transformer as a chain of layers, which hold the model's own parameters.                   [torch]

images --patches, class token, positions--> (b, 1 + patches, width) --blocks--> norm, class token, linear --> logits
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


def chain_of(model: Any) -> dict[str, nn.Module]:
    """Layers by name, in order; empty for a model that computes otherwise than EMBEDDING and HEAD do."""
    from timm.models.vision_transformer import VisionTransformer

    plain = type(model) is VisionTransformer and model.cls_token is not None and model.pos_embed is not None
    if not plain or model.reg_token is not None or model.no_embed_class or model.dynamic_img_size:
        return {}
    if model.attn_pool is not None or model.global_pool != "token":
        return {}
    blocks = {f"block{number}": block for number, block in enumerate(model.blocks, start=1)}
    return {"embedding": Embedding(model), **blocks, "head": Head(model)}


class Embedding(nn.Module):
    """(b, 3, side, side) images -> (b, 1 + patches, width)."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.patch_embed, self.cls_token, self.pos_embed = model.patch_embed, model.cls_token, model.pos_embed
        self.after = nn.Sequential(model.pos_drop, model.patch_drop, model.norm_pre)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        patches = self.patch_embed(images)
        tokens = torch.cat([self.cls_token.expand(len(patches), -1, -1), patches], dim=1) + self.pos_embed
        return self.after(tokens)  # type: ignore[no-any-return]


class Head(nn.Module):
    """(b, 1 + patches, width) -> (b, classes), of the class token."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.norm, self.after = model.norm, nn.Sequential(model.fc_norm, model.head_drop, model.head)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.after(self.norm(tokens)[:, 0])  # type: ignore[no-any-return]
