"""A body parses to the same request with and without its data: URLs split off, for random bodies."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from typing import Any

import msgspec
import pybase64
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmserve.httpserver.call import GenerateCall
from mmserve.httpserver.limits.media_budgets import RequestByteLimit
from mmserve.httpserver.media import split_media as split_media_module
from mmserve.httpserver.media.local import read_data_url
from mmserve.httpserver.media.split_media import SplitUrl, split_media
from mmserve.httpserver.served_model import ServedModel
from mmserve.runtime.errors import MmserveError
from tests.fakes.http.http_services import make_deployment
from tests.fakes.ranks.calls import messages_of, parse_chat

PIXELS = bytes(range(256)) * 100
URL = "data:image/png;base64," + pybase64.b64encode_as_string(PIXELS)
MODEL = ServedModel.of(make_deployment("/nowhere"))

TRICKY = """
a|say "data:image/png;base64,AAAA" to it|\\"data:|data:|data:;base64,|data:x/y;base64,QUJD|data:x/y;BASE64,QU/+
data:,plain
x "data:;base64,QUJD|data:é;base64,QUJD|data:;base64,QQ"|data:;base64,QQ\\|data:;base64,QQ"data:;base64,QQ|ü\t\x00
"""
texts = st.sampled_from(TRICKY.strip().replace("\n", "|").split("|")) | st.text(max_size=8)
seeds = st.integers(0, 1 << 32)
long_texts = st.sampled_from(
    ["QUJD/+" * 11, "QUJD" * 16 + "==", "QUJD" * 16 + '"', "QUJD" * 16 + "\\", "a" * 63, "a " * 99]
)
data_keys = st.sampled_from(["data", "data", "DATA", '"data', "data:", "data\\", "database"])
documents = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | texts | long_texts,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(texts | data_keys, inner, max_size=4)
        | st.dictionaries(data_keys, long_texts, min_size=1, max_size=2)
    ),
    max_leaves=12,
)


@pytest.fixture(autouse=True)
def _cut_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(split_media_module, "_MIN_NBYTES", 0)


def written(value: Any, rng: random.Random) -> bytes:
    """Valid JSON in varied spellings: needless escapes, whitespace anywhere."""
    blank = rng.choice(["", "", "", " ", "\n\t "])
    if isinstance(value, str):
        return b'"' + b"".join(_character(char, rng) for char in value) + b'"'
    if isinstance(value, list):
        inner = b",".join(blank.encode() + written(item, rng) for item in value)
        return b"[" + inner + blank.encode() + b"]"
    if isinstance(value, dict):
        inner = b",".join(
            written(key, rng) + blank.encode() + b":" + blank.encode() + written(item, rng)
            for key, item in value.items()
        )
        return b"{" + inner + b"}"
    return json.dumps(value).encode()


def _character(char: str, rng: random.Random) -> bytes:
    short = {'"': '\\"', "\\": "\\\\", "/": "\\/", "\n": "\\n", "\t": "\\t"}
    if char in '"\\' or char < " ":
        return short.get(char, f"\\u{ord(char):04x}").encode()
    if rng.random() < 0.02 and ord(char) < 0x10000:
        return f"\\u{ord(char):04X}".encode()
    if char == "/" and rng.random() < 0.3:
        return b"\\/"
    return char.encode()


def restored(value: Any, cut: Mapping[str, SplitUrl]) -> Any:
    """The parsed cut body with strings in the place of marks, keys included."""
    if isinstance(value, str) and value in cut:
        head, data = cut[value]
        return head + msgspec.json.decode(b'"' + bytes(data) + b'"', type=str)
    if isinstance(value, list):
        return [restored(item, cut) for item in value]
    if isinstance(value, dict):
        return {restored(key, cut): restored(item, cut) for key, item in value.items()}
    return value


@given(documents, seeds)
def test_any_document_parses_to_the_same_value(value: Any, seed: int) -> None:
    body = written(value, random.Random(seed))
    text, cut = split_media(body)
    assert restored(msgspec.json.decode(text), cut) == msgspec.json.decode(body)


@given(documents, seeds, st.data())
def test_invalid_json_stays_invalid(value: Any, seed: int, data: st.DataObject) -> None:
    """One byte is changed, left out or put in: the cut body and its strings parse exactly when the whole body does."""
    body = bytearray(written(value, random.Random(seed)))
    at, length = data.draw(st.integers(0, len(body))), data.draw(st.integers(0, 1))
    body[at : at + length] = data.draw(st.sampled_from([b"", b'"', b"\\", b"}", b",", b"\n", b"x"]))
    assert value_or_none(*split_media(body)) == value_or_none(body, {})


def value_or_none(text: bytes | bytearray, cut: Mapping[str, SplitUrl]) -> list[Any] | None:
    try:
        return [restored(msgspec.json.decode(text), cut)]
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


urls = texts | st.just(URL[:60])
image_parts = st.fixed_dictionaries(
    {"type": st.just("image_url"), "image_url": urls | st.fixed_dictionaries({"url": urls, "detail": texts})}
)
text_parts = st.fixed_dictionaries({"type": st.just("text"), "text": texts | st.just(URL[:60])})
contents = texts | st.lists(image_parts | text_parts, min_size=1, max_size=4)
requests = st.fixed_dictionaries(
    {
        "messages": st.lists(
            st.fixed_dictionaries({"role": st.sampled_from(["user", "system"]), "content": contents}),
            min_size=1,
            max_size=3,
        ),
        "seed": st.just(1),
    },
    optional={"user": texts, "stop": texts, "cache_salt": texts, "model": texts, "metadata": documents},
)


def outcome(body: bytes, *, cutting: bool) -> object:
    """The result of parsing: the call with whole URLs, or the error and its field."""
    minimum = 0 if cutting else 1 << 60
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(split_media_module, "_MIN_NBYTES", minimum)
        try:
            call = parse_chat(body, MODEL)
        except MmserveError as error:
            return type(error), error.param, error.message
    return msgspec.structs.replace(call, request_id="", media=()), [(whole(ref), ref.param) for ref in call.media]


def whole(ref: Any) -> str:
    return ref.url if ref.data is None else restored("m", {"m": SplitUrl(ref.url, ref.data)})


@given(requests, seeds)
def test_a_request_parses_as_without_cutting(request: dict[str, Any], seed: int) -> None:
    body = written(request, random.Random(seed))
    assert outcome(body, cutting=True) == outcome(body, cutting=False)


def call_of(*parts: dict[str, Any], **fields: Any) -> GenerateCall:
    return parse_chat(
        json.dumps({"model": "stub", "messages": [{"role": "user", "content": list(parts)}], **fields}).encode(), MODEL
    )


def base64_values(body: bytes) -> list[bytes]:
    return [bytes(data) for head, data in split_media(body)[1].values() if not head]


def test_base64_text_under_the_key_data_is_cut() -> None:
    text = pybase64.b64encode(PIXELS)
    for form in (b'{"data":"%b"}', b'[{"a":{"data" :\n "%b"}}]', b'{"data":"x","data":"%b"}'):
        body = form % text
        rest, cut = split_media(body)
        assert base64_values(body) == [text]
        assert len(rest) < 100
        assert restored(msgspec.json.decode(rest), cut) == msgspec.json.decode(body)


def test_what_only_looks_like_a_key_is_not_cut() -> None:
    text = b"QUJD" * 99
    for form in (
        b'{"text":"\\"data\\":\\"%b"}',
        b'{"Data":"%b"}',
        b'{"data":["%b"]}',
        b'["data","%b"]',
        b'{"data":"- %b"}',
    ):
        assert split_media(form % text) == (form % text, {})


def test_base64_under_the_key_data_of_a_chat_is_put_back() -> None:
    metadata = {"data": "QUJD" * 99}
    assert call_of(image(URL), metadata=metadata).media[0].data is not None


def image(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def test_images_are_not_copied_out_of_the_body() -> None:
    first, second = call_of(image(URL), {"type": "text", "text": "and"}, image(URL)).media
    assert first.url == second.url == "data:image/png;base64,"
    assert first.data is not None
    assert second.data is not None
    assert first.data.obj is second.data.obj
    assert read_data_url(second, RequestByteLimit(1 << 20)) == PIXELS
    assert second.nbytes == len(URL)
    assert second.param == "messages[0].content[2].image_url.url"


def test_a_data_url_that_is_text_stays_text() -> None:
    call = call_of(image(URL), {"type": "text", "text": URL})
    assert messages_of(call)[0].content[1].text == URL  # type: ignore[union-attr]
    assert whole(call.media[0]) == URL


def test_a_mark_sent_by_a_client_has_no_meaning() -> None:
    mark = next(iter(split_media(json.dumps([URL]).encode())[1]))
    call = call_of(image(mark), {"type": "text", "text": URL})
    assert call.media[0].url == mark


def test_the_last_of_duplicate_fields_counts() -> None:
    body = (
        b'{"model":"stub",'
        b'"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"%b","url":"b"}}]}]}'
    )
    assert parse_chat(body % URL.encode(), MODEL).media[0].url == "b"


@pytest.mark.parametrize("escape", ["\\/", "\\u002f", "%2F"])
def test_escaped_base64_is_decoded(escape: str) -> None:
    body = json.dumps({"model": "stub", "messages": [{"role": "user", "content": [image(URL)]}]}).encode()
    start = body.index(b"base64,") + 7
    media = parse_chat(body[:start] + body[start:].replace(b"/", escape.encode()), MODEL).media
    assert media[0].data is not None
    assert read_data_url(media[0], RequestByteLimit(1 << 20)) == PIXELS


@pytest.mark.parametrize("inside", [b"\x00", b"\xff", b"\\q", b"\xc3\xbc", b"-_", b"=="])
def test_invalid_base64_is_refused_with_its_field(inside: bytes) -> None:
    body = (
        b'{"model":"stub",'
        b'"messages":[{"role":"user","content":[{"type":"image_url","image_url":"data:;base64,QUJD%bQUJD"}]}]}'
    )
    media = parse_chat(body % inside, MODEL).media
    with pytest.raises(MmserveError, match="not valid base64"):
        read_data_url(media[0], RequestByteLimit(1 << 20))


def test_the_search_of_a_text_full_of_candidates_is_bounded() -> None:
    call = call_of({"type": "text", "text": 'say "data: ' * 5000}, image(URL))
    assert call.media[0].url == URL
    call = call_of(image(URL), {"type": "text", "text": 'say "data: ' * 5000})
    assert call.media[0].data is not None


def test_bodies_with_small_or_no_images_are_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    for body in (json.dumps([URL[:1000]] * 9).encode(), b'{"text": "no picture"}', b"", b'"data:;base64,'):
        text, cut = split_media(body)
        assert text is body
        assert not cut
