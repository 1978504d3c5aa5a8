"""The packaged model from GGUF files, text in blocks and a projector, reads digits through the whole server."""

from __future__ import annotations

import base64
import io
from pathlib import Path

import httpx2
import pytest
from PIL import Image, ImageDraw

from benchmarks.load.server import serve
from mmserve.checkpoint.locate import locate
from tests.e2e.stack import LITTLE_MEMORY
from tests.fakes.formats.gguf_files import gguf_of
from tests.fakes.formats.gguf_projectors import projector_of

pytestmark = pytest.mark.families
DIGITS = ("37", "502", "8", "64")


def mixed(name: str) -> str:
    if name in ("output.weight", "token_embd.weight"):
        return "F16"
    return "Q6_K" if "attn_v" in name else "Q5_0" if "ffn_down" in name else "Q4_K"


def picture(digits: str) -> str:
    """As a data URL."""
    image, file = Image.new("RGB", (128, 128), "white"), io.BytesIO()
    ImageDraw.Draw(image).text((20, 40), digits, fill="black", font_size=44)
    image.save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def answer(url: str, digits: str) -> str:
    content = [
        {"type": "image_url", "image_url": {"url": picture(digits)}},
        {"type": "text", "text": "Which digits are in the picture?"},
    ]
    body = {"model": "tiny", "max_tokens": 24, "temperature": 0, "messages": [{"role": "user", "content": content}]}
    found = httpx2.post(f"{url}/v1/chat/completions", json=body, timeout=60).raise_for_status().json()
    return str(found["choices"][0]["message"]["content"])


def test_digits_in_pictures_are_read(tmp_path: Path) -> None:
    packaged = locate("llava")
    file = gguf_of(packaged, tmp_path / "llava.gguf", mixed, tokenizer__ggml__pre="smollm")
    projector_of(packaged, tmp_path / "mmproj-llava-f16.gguf")
    with serve(*LITTLE_MEMORY, "--served-model-name", "tiny", "--http-workers", "1", model=str(file)) as target:
        assert [answer(target.url, digits) for digits in DIGITS] == list(DIGITS)
