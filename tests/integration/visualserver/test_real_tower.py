"""From compressed bytes to rows in the arena, the way transformers does it: views made by Pillow, and by the device."""

from __future__ import annotations

import io
from pathlib import Path

import torch
import transformers
from PIL import Image

from mmserve.checkpoint.load import load
from tests.fakes.models.checkpoints import make_llava
from tests.fakes.pictures.media import png
from tests.integration.visualserver.stack import Stack, play


def _expected(directory: Path, data: bytes) -> torch.Tensor:
    pixels = transformers.CLIPImageProcessorPil.from_pretrained(directory)(
        Image.open(io.BytesIO(data)), return_tensors="pt"
    )
    model = transformers.LlavaForConditionalGeneration.from_pretrained(directory, dtype=torch.float32)
    with torch.inference_mode():
        features = model.get_image_features(pixel_values=pixels["pixel_values"])
    return features.pooler_output[0]


def test_rows_equal_transformers(tmp_path: Path) -> None:
    directory = make_llava(tmp_path / "model")

    async def scenario(stack: Stack) -> None:
        pictures = [png(n, 60 + 20 * n, 50) for n in range(3)]
        request = stack.send("r", *pictures)
        assert await stack.received(1) == {"r": request}
        for index, picture in enumerate(pictures):
            torch.testing.assert_close(stack.rows(request, index), _expected(directory, picture), rtol=1e-4, atol=1e-4)

    play(tmp_path, scenario, model=load(directory))
    play(tmp_path, scenario, model=load(directory), whole=True)
