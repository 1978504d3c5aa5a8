"""Gemma 3's: SigLIP, the means of squares of patches, a norm and a matrix."""

from __future__ import annotations

from mmserve.checkpoint.gguf.projectors import siglip
from mmserve.checkpoint.gguf.projectors.names import Names
from mmserve.checkpoint.gguf.projectors.projector import Fields, Projector
from mmserve.checkpoint.gguf.projectors.tower import Tower

_TOWER, _PROJECTOR = "vision_tower.vision_model.", "multi_modal_projector."
_USUAL_SCALE = 4
"""Patches along the side of a square, which files name only where it differs."""
_NAMES = Names(
    layer=_TOWER + "encoder.layers.{}.",
    parts=siglip.PARTS,
    others=siglip.others(_TOWER)
    | {
        "mm.input_projection.weight": _PROJECTOR + "mm_input_projection_weight",
        "mm.soft_emb_norm.weight": _PROJECTOR + "mm_soft_emb_norm.weight",
    },
)


def _config(tower: Tower, text: Fields) -> Fields:
    scale = tower.number("projector.scale_factor", _USUAL_SCALE)
    return {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "model_type": "gemma3",
        "vision_config": {"hidden_act": "gelu_pytorch_tanh", **tower.sizes()},
        "mm_tokens_per_image": (tower.number("image_size") // tower.number("patch_size") // scale) ** 2,
    }


def _settings(tower: Tower) -> Fields:
    return {"image_processor_type": "Gemma3ImageProcessor", "size": tower.side(), **tower.colours()}


GEMMA3 = Projector(
    texts=("gemma3",),
    token="<image_soft_token>",
    output=lambda tower: tower.shape("mm.input_projection.weight")[1],
    config=_config,
    settings=_settings,
    names=lambda tower: _NAMES,
    spare_token=r"<unused\d+>",
)
