"""Broken, unusual and hostile pictures get the right answer or a 400 with the reason, and the server stays up."""

from __future__ import annotations

import base64
import io
import struct
import zlib

import openai
import pytest
from PIL import Image

from tests.e2e.stack import Stack, ask
from tests.fakes.pictures.cache import until
from training.sample import samples


def _encode(image: Image.Image, kind: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def _messages(data: bytes, text: str = "What colour is the background?") -> list[dict[str, object]]:
    url = "data:image/png;base64," + base64.b64encode(data).decode()
    content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": text}]
    return [{"role": "user", "content": content}]


def _picture() -> tuple[Image.Image, list[dict[str, object]], str]:
    sample = next(samples(1, seed=990, kinds=("colour",)))
    return Image.open(io.BytesIO(sample.images[0])).convert("RGB"), sample.messages, sample.answer


def _png_chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _bomb() -> bytes:
    """A small PNG file whose header says 30,000 x 30,000 pixels."""
    header = struct.pack(">IIBBBBB", 30_000, 30_000, 8, 2, 0, 0, 0)
    body = zlib.compress(bytes(90_001 * 50), 9)
    return b"\x89PNG\r\n\x1a\n" + _png_chunk(b"IHDR", header) + _png_chunk(b"IDAT", body) + _png_chunk(b"IEND", b"")


def _animated() -> bytes:
    frames = [Image.new("RGB", (64, 48), colour) for colour in ("red", "blue")]
    return _encode(frames[0], "GIF", save_all=True, append_images=frames[1:], duration=100)


BROKEN = {
    "truncated": lambda picture: _encode(picture, "JPEG")[:-400],
    "truncated png": lambda picture: _encode(picture, "PNG")[:-300],
    "0 byte": lambda picture: b"",
    "not an image": lambda picture: b"%PDF-1.4 hello",
    "svg": lambda picture: b"<svg xmlns='http://www.w3.org/2000/svg' width='9' height='9'/>",
    "bomb": lambda picture: _bomb(),
    "eps": lambda picture: _encode(picture, "EPS"),
}

UNUSUAL = {
    "1x1": lambda picture: _encode(picture.resize((1, 1)), "PNG"),
    "1x600": lambda picture: _encode(picture.resize((1, 600)), "PNG"),
    "cmyk": lambda picture: _encode(picture.convert("CMYK"), "JPEG"),
    "16 bit": lambda picture: _encode(
        picture.convert("L").convert("I").point(lambda v: v * 257).convert("I;16"), "PNG"
    ),
    "palette": lambda picture: _encode(picture.convert("P"), "PNG"),
    "alpha": lambda picture: _encode(picture.convert("RGBA"), "PNG"),
    "grey": lambda picture: _encode(picture.convert("L"), "PNG"),
    "bilevel": lambda picture: _encode(picture.convert("1"), "PNG"),
    "animated": lambda picture: _animated(),
    "webp": lambda picture: _encode(picture, "WEBP"),
    "bmp": lambda picture: _encode(picture, "BMP"),
    "tiff": lambda picture: _encode(picture, "TIFF"),
}


def _assert_serving(stack: Stack) -> None:
    _, messages, answer = _picture()
    with stack.client() as client:
        assert ask(client, messages).strip() == answer


@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.parametrize("stream", [False, True])
def test_a_broken_picture_gets_a_400_that_names_the_picture(default_stack: Stack, name: str, stream: bool) -> None:
    picture, _, _ = _picture()
    with default_stack.client() as client, pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="llava", messages=_messages(BROKEN[name](picture)), stream=stream)
    body = caught.value.response.json()["error"]
    assert "messages[0].content[0]" in (body["param"] or "")
    assert "0x" not in body["message"]
    _assert_serving(default_stack)


@pytest.mark.parametrize("name", UNUSUAL)
def test_an_unusual_picture_is_answered(default_stack: Stack, name: str) -> None:
    picture, _, _ = _picture()
    with default_stack.client() as client:
        assert ask(client, _messages(UNUSUAL[name](picture)), max_tokens=30)
    _assert_serving(default_stack)


def test_image_bytes_and_embeddings_are_copied_once(default_stack: Stack) -> None:
    """Both are copied once, into the arena; a cached image is not copied."""

    def copied() -> tuple[float, float]:
        return tuple(default_stack.metric("mm_copied_bytes_total", kind=kind) for kind in ("data", "embed"))  # type: ignore[return-value]

    data = _encode(_picture()[0].rotate(7), "PNG")
    before = copied()
    with default_stack.client() as client:
        for _ in range(2):
            ask(client, _messages(data), n=2)
    rows_nbytes = 64 * 256 * 4
    until(lambda: copied() == (before[0] + len(data), before[1] + rows_nbytes))


def test_conversions_do_not_change_the_answer(default_stack: Stack) -> None:
    picture, messages, answer = _picture()
    question = messages[-1]["content"][-1]["text"]  # type: ignore[index]
    variants = [
        _encode(picture.convert("CMYK"), "JPEG", quality=95),
        _encode(picture.convert("RGBA"), "PNG"),
        _encode(picture.quantize(256), "PNG"),
        _encode(picture, "WEBP", lossless=True),
    ]
    with default_stack.client() as client:
        assert [ask(client, _messages(data, question)).strip() for data in variants] == [answer] * len(variants)


def test_exif_rotation_is_applied(default_stack: Stack) -> None:
    picture, messages, answer = _picture()
    question = messages[-1]["content"][-1]["text"]  # type: ignore[index]
    exif = Image.Exif()
    exif[0x0112] = 6  # viewers rotate the stored pixels by 90 degrees clockwise
    data = _encode(picture.transpose(Image.Transpose.ROTATE_90), "PNG", exif=exif)
    with default_stack.client() as client:
        assert ask(client, _messages(data, question)).strip() == answer


def test_broken_pictures_do_not_affect_later_requests(default_stack: Stack) -> None:
    good = list(samples(6, seed=31, kinds=("colour",)))
    with default_stack.client() as client:
        for sample in good:
            with pytest.raises(openai.BadRequestError):
                ask(client, _messages(b"\xff\xd8\xff broken"))
            assert ask(client, sample.messages)
    assert default_stack.eventually("mm_leases", 0) == 0


def test_a_picture_is_named_and_not_sent_again(default_stack: Stack) -> None:
    _, messages, answer = _picture()
    sent, named = _with_uuid(messages), _with_uuid(messages, image_url=None)
    with default_stack.client() as client:
        with pytest.raises(openai.BadRequestError) as unknown:
            ask(client, named)
        assert unknown.value.code == "media_not_stored"
        assert ask(client, sent) == answer
        for _ in range(4):  # at any HTTP worker
            assert ask(client, named) == answer
        with pytest.raises(openai.BadRequestError):
            ask(client, named, extra_body={"cache_salt": "another"})


def test_an_answer_is_the_same_however_much_is_computed_before_its_pictures_are_encoded(default_stack: Stack) -> None:
    """Text, then eight pictures, one of them twice: with pictures that are encoded, and with another salt, for which
    they are encoded again."""
    pictures = [sample.messages[0]["content"][0] for sample in samples(7, seed=991, kinds=("colour",))]  # type: ignore[index]
    system = {"role": "system", "content": "Here are a few pictures. " * 20}
    question = {"type": "text", "text": "What colour is the background of the last one?"}
    messages = [system, {"role": "user", "content": [*pictures, pictures[2], question]}]
    encoded = default_stack.metric("mm_images_encoded_total")
    with default_stack.client() as client:
        ask(client, [{"role": "user", "content": pictures[::-1]}], max_tokens=1)
        answer = ask(client, messages, max_tokens=30)
        assert default_stack.eventually("mm_images_encoded_total", encoded + 7) == encoded + 7
        assert ask(client, messages, max_tokens=30, extra_body={"cache_salt": "overlapped"}) == answer
        assert default_stack.eventually("mm_images_encoded_total", encoded + 14) == encoded + 14
    assert default_stack.eventually("mm_leases", 0) == 0


def _with_uuid(messages: list[dict[str, object]], **changed: object) -> list[dict[str, object]]:
    """The messages with a name for their picture."""
    parts: list[dict[str, object]] = messages[0]["content"]  # type: ignore[assignment]
    content = [part | {"uuid": "e2e-1"} | changed if part["type"] == "image_url" else part for part in parts]
    return [messages[0] | {"content": content}]
