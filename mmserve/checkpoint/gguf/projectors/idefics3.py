"""That of Idefics3, SmolVLM and SmolVLM2: SigLIP, squares of patches and a matrix."""

from __future__ import annotations

from mmserve.checkpoint.gguf.projectors import siglip
from mmserve.checkpoint.gguf.projectors.names import Names
from mmserve.checkpoint.gguf.projectors.projector import Fields, Projector
from mmserve.checkpoint.gguf.projectors.tower import Tower

_TOWER = "model.vision_model."
_USUAL_TILES = 4
"""Along the longer side of a picture, where the file does not say."""
_NAMES = Names(
    layer=_TOWER + "encoder.layers.{}.",
    parts=siglip.PARTS,
    others=siglip.others(_TOWER) | {"mm.model.fc.weight": "model.connector.modality_projection.proj.weight"},
)


def _config(tower: Tower, text: Fields) -> Fields:
    return {
        "architectures": ["Idefics3ForConditionalGeneration"],
        "model_type": "idefics3",
        "vision_config": {"hidden_act": "gelu_pytorch_tanh", **tower.sizes()},
        "scale_factor": tower.number("projector.scale_factor"),
    }


def _settings(tower: Tower) -> Fields:
    side = tower.number("image_size")
    return {
        "image_processor_type": "Idefics3ImageProcessor",
        "size": {"longest_edge": tower.number("preproc_image_size", _USUAL_TILES * side)},
        "max_image_size": {"longest_edge": side},
        **tower.colours(),
    }


IDEFICS3 = Projector(
    texts=("llama",),
    token="<image>",
    output=lambda tower: tower.shape("mm.model.fc.weight")[0],
    config=_config,
    settings=_settings,
    names=lambda tower: _NAMES,
)
