"""Pictures of every kind as URLs."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from mmserve.client.pictures import PictureError, url_of

PIXELS = np.arange(4 * 5 * 3, dtype=np.uint8).reshape(4, 5, 3)


def _bytes(kind: str) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(PIXELS).save(buffer, kind)
    return buffer.getvalue()


def _decoded(url: str) -> tuple[str, bytes]:
    kind, _, data = url.partition(";base64,")
    return kind, base64.b64decode(data)


def test_files_and_bytes_are_sent_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(_bytes("JPEG"))
    for picture in (path, str(path), _bytes("JPEG")):
        assert _decoded(url_of(picture)) == ("data:image/jpeg", _bytes("JPEG"))


@pytest.mark.parametrize("url", ["https://example.com/a.png", "data:image/png;base64,AA"])
def test_a_url_stays(url: str) -> None:
    assert url_of(url) == url


@pytest.mark.parametrize("picture", [PIXELS, Image.fromarray(PIXELS)])
def test_pixels_arrive_unchanged(picture: Any) -> None:
    kind, data = _decoded(url_of(picture))
    assert kind == "data:image/png"
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(data))), PIXELS)


@pytest.mark.parametrize(
    ("picture", "says"),
    [
        (PIXELS.astype(np.float32), "float32"),
        (PIXELS[None], r"\(1, 4, 5, 3\)"),
        (b"hello", "no picture of a known format"),
        ("/no/such.png", "/no/such.png: No such file"),
        (3, "a int is no picture"),
        (Image.new("F", (3, 3)), "mode F"),
    ],
)
def test_what_is_no_picture_is_refused(picture: Any, says: str) -> None:
    with pytest.raises(PictureError, match=says):
        url_of(picture)
