"""CLIP's vision transformer (Radford et al. 2021) up to the feature layer, and LLaVA's projector behind it.

Every process that uses it holds all of it: towers are not sharded over ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import nn

from mmserve.checkpoint.vision.clip import ClipVision
from mmserve.model_backend.layers.context import LayerContext
from mmserve.model_backend.layers.linear import ColumnParallelLinear, Projection
from mmserve.model_backend.layers.norm import LayerNorm
from mmserve.model_backend.layers.target import Target
from mmserve.model_backend.vision.interface import ViewTensors
from mmserve.model_backend.vision.parts.encoder_layer import EncoderLayer
from mmserve.model_backend.vision.parts.projector import Projector
from mmserve.model_backend.vision.parts.tiles import encode_tiles, patches_of


class PatchEmbedding(nn.Module):
    """Pixels [B, 3, H, W] -> [B, 1 + patches, hidden]: class token, patches row by row, learned positions."""

    def __init__(self, spec: ClipVision, *, context: LayerContext) -> None:
        super().__init__()
        num_patches = (spec.image_size // spec.patch_size) ** 2
        self._patch_size, self._prefix = spec.patch_size, context.prefix
        self.class_token = context.empty(spec.hidden_size)
        outs = [Projection("patch_embedding", spec.hidden_size)]
        self.patches = ColumnParallelLinear(3 * spec.patch_size**2, outs, bias=False, context=context)
        self.positions = context.empty(num_patches + 1, spec.hidden_size)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        batch, (tokens, hidden) = len(pixels), self.positions.shape
        patches = self.patches(patches_of(pixels, self._patch_size)).view(batch, tokens - 1, hidden)
        first = self.class_token.expand(batch, 1, hidden)
        return torch.cat((first, patches), dim=1) + self.positions

    def targets(self) -> Iterator[tuple[str, Target]]:
        yield from self.patches.targets()
        for name, parameter in (
            ("class_embedding", self.class_token),
            ("position_embedding.weight", self.positions),
        ):
            yield self._prefix + name, Target(parameter, tuple(parameter.shape))


class VisionTower(nn.Module):
    """Tower and projector; only the layers up to the feature layer exist. ``context`` is that of one rank alone."""

    def __init__(self, spec: ClipVision, text_hidden_size: int, *, context: LayerContext) -> None:
        super().__init__()
        self._spec, self._context = spec, context
        self.embedding = PatchEmbedding(spec, context=context.below("vision.embeddings."))
        self.pre_norm = LayerNorm("vision.pre_layrnorm", spec.hidden_size, spec.layer_norm_eps, context=context)
        self.layers = nn.ModuleList(
            EncoderLayer(spec, context=context.below(_layer_prefix(index))) for index in range(spec.num_layers_needed)
        )
        self.projector = Projector(
            spec.hidden_size,
            text_hidden_size,
            text_hidden_size,
            activation=spec.projector_activation,
            bias=spec.projector_bias,
            context=context.below("projector."),
        )

    @property
    def device(self) -> torch.device:
        return self.embedding.positions.device

    @torch.inference_mode()
    def forward(self, pictures: Sequence[ViewTensors]) -> list[torch.Tensor]:
        """Pictures of tiles [k, 3, image_size, image_size], any float dtype -> rows [k * num_rows, hidden] of each."""
        return encode_tiles(pictures, self._encode)

    def _encode(self, pixels: torch.Tensor) -> torch.Tensor:
        x = self.pre_norm(self.embedding(pixels.to(self.device, self.embedding.positions.dtype)))
        batch, tokens, _ = x.shape
        for layer in self.layers:
            layer(x.view(batch * tokens, -1), [tokens] * batch)
        if self._spec.select_strategy == "default":
            x = x[:, 1:]
        return self.projector(x)  # type: ignore[no-any-return]

    def targets(self) -> dict[str, Target | None]:
        """Canonical tensor name -> parameter; None for tensors behind the feature layer, which are not needed."""
        found: dict[str, Target | None] = dict(self.embedding.targets())
        found.update(self.pre_norm.targets())
        for layer in self.layers:
            assert isinstance(layer, EncoderLayer)
            found.update(layer.targets())
        found.update(self.projector.targets())
        found.update(dict.fromkeys(("vision.post_layernorm.weight", "vision.post_layernorm.bias")))
        first = _layer_prefix(0)
        pattern = self.layers[0] if len(self.layers) else EncoderLayer(self._spec, context=self._context.below(first))
        assert isinstance(pattern, EncoderLayer)
        names = [name.removeprefix(first) for name, _ in pattern.targets()]
        for index in range(len(self.layers), self._spec.num_layers):
            found.update(dict.fromkeys(_layer_prefix(index) + name for name in names))
        return found


def _layer_prefix(index: int) -> str:
    return f"vision.encoder.layers.{index}."
