"""Known attacks on servers of this kind that need no connection to try. Names are the advisories' ids; see
docs/security.md for what mmserve does about each."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mmserve.httpserver.api.openai.chat.messages import ConversationReader
from mmserve.httpserver.api.openai.fields import ChatRequest, decode
from mmserve.httpserver.api.openai.response_format import response_grammar
from mmserve.httpserver.limits.media_budgets import RequestByteLimit
from mmserve.httpserver.media.addresses import AddressPolicy
from mmserve.httpserver.media.fetch import Fetcher, _CheckedBackend
from mmserve.httpserver.media.resolver import Resolver
from mmserve.httpserver.prompt.template.chat_template import ALWAYS_GIVEN, variables_read
from mmserve.httpserver.served_model import ServedModel
from mmserve.processors.image_files import picture
from mmserve.runtime.errors import InvalidRequest, MediaError
from tests.fakes.http.http_services import make_deployment
from tests.fakes.pictures.media import encoded
from tests.fakes.pictures.media import picture as new_picture
from tests.fakes.ranks.calls import parse_chat

PACKAGE = Path(__file__).parents[3] / "mmserve"
SOURCES = {source: source.read_text() for source in PACKAGE.rglob("*.py")}
PUBLIC = "93.184.216.34"


def _fetch(url: str, policy: AddressPolicy, lookups: list[list[str]] | None = None) -> str:
    """The refusal of a fetch. ``lookups``: the name server's answers, one after another."""
    answers = iter(lookups or [])

    async def run() -> str:
        resolver = Resolver(lambda host, port: next(answers))
        fetcher = Fetcher(policy, timeout_s=5, resolver=resolver)
        try:
            with pytest.raises(MediaError) as refused:
                await fetcher.get(url, RequestByteLimit(1000))
            return refused.value.message
        finally:
            await fetcher.aclose()

    return asyncio.run(run())


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1/",
        "http://[::1]/",
        "http://169.254.169.254/latest/meta-data/",
        "http://10.1.2.3/",
        "http://[::ffff:169.254.169.254]/",
    ],
)
def test_cve_2025_6242_private_addresses_are_not_fetched_from(url: str) -> None:
    assert "address" in _fetch(url, AddressPolicy())


@pytest.mark.parametrize("host", ["2130706433", "0177.0.0.1", "0x7f.1", "127.1"])
def test_ghsa_3f6c_7fw2_ppm4_other_spellings_of_an_address_are_resolved_and_checked(host: str) -> None:
    """The system's resolver reads these as 127.0.0.1."""
    refusal = _fetch(f"http://{host}/", AddressPolicy(), [["127.0.0.1"]])
    assert refusal in ("images may not be fetched from that address", "the image's URL is not valid")


@pytest.mark.parametrize(
    "url",
    [
        "http://allowed.example\\@evil.example/",
        "http://allowed.example\\.evil.example/",
        "http:\\\\evil.example/",
        "http://evil.example\\/allowed.example",
    ],
)
def test_cve_2026_24779_a_backslash_is_refused(url: str) -> None:
    assert "backslash" in _fetch(url, AddressPolicy(["allowed.example"]))


@pytest.mark.parametrize(
    "url",
    [
        "http://allowed.example@evil.example/",
        "http://allowed.example%40evil.example/",
        "http://allowed.example%2eevil.example/",
        "http://evil.example#@allowed.example/",
        "http://evil.example?@allowed.example/",
        "http://\tallowed.example/",
        "http://аllowed.example/",
        "//allowed.example/",
    ],
)
def test_cve_2026_25960_the_host_that_is_checked_is_the_one_that_is_fetched_from(url: str) -> None:
    """The last but one begins with a Cyrillic letter."""
    _fetch(url, AddressPolicy(["allowed.example"]))  # refused before any look-up


def test_issue_57157_dns_rebinding_cannot_change_the_address_after_the_check() -> None:
    connected: list[str] = []

    class Recorder:
        async def connect_tcp(self, host: str, *rest: Any) -> Any:
            connected.append(host)
            raise OSError

    async def run() -> int:
        answers = iter([[PUBLIC], ["127.0.0.1"]])
        resolver = Resolver(lambda host, port: next(answers))
        backend = _CheckedBackend(AddressPolicy(), resolver)
        backend._inner = Recorder()  # type: ignore[assignment]
        with pytest.raises(OSError):  # noqa: PT011 - the recorder's
            await backend.connect_tcp("rebinding.example", 80)
        resolver.close()
        return len(list(answers))

    assert asyncio.run(run()) == 1
    assert connected == [PUBLIC]
    for answers in (["127.0.0.1"], ["10.0.0.1", "::1"]):
        assert "address" in _fetch("http://rebinding.example/", AddressPolicy(), [answers])


@pytest.mark.parametrize(
    "damage", [b"", b"\x89PNG\r\n\x1a\n" + bytes(40), b"\xff\xd8\xff" + bytes(60), b"GIF89a" + b"\xff" * 30]
)
def test_cve_2026_22778_refusals_hold_no_address_path_or_traceback(damage: bytes) -> None:
    """Pillow's own message holds the address of an object."""
    for read in (lambda: picture.header(damage, 10**6), lambda: picture.decode(damage)):
        with pytest.raises(MediaError) as refused:
            read()
        assert not any(word in refused.value.message for word in ("0x", "/", "Traceback", "BytesIO", ".py"))


@pytest.mark.parametrize(
    "data",
    [
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\n",
        b"\xd7\xcd\xc6\x9a" + bytes(80),
        b"<svg xmlns='http://www.w3.org/2000/svg' width='1' height='1'/>",
        b"%PDF-1.7\n1 0 obj\n",
        b"\x00\x00\x00\x0cjP  \r\n\x87\n" + bytes(40),
    ],
    ids=["EPS", "WMF", "SVG", "PDF", "JPEG 2000"],
)
def test_cve_2026_115915_formats_that_start_other_programs_are_refused(data: bytes) -> None:
    for read in (lambda: picture.header(data, 10**6), lambda: picture.decode(data)):
        with pytest.raises(MediaError):
            read()


@pytest.mark.parametrize("format", ["PPM", "TGA", "PCX", "ICO"])
def test_cve_2026_115915_only_listed_formats_are_opened(format: str) -> None:
    with pytest.raises(MediaError):
        picture.header(encoded(new_picture(), format), 10**6)


def test_cve_2026_26220_nothing_that_unpickles_is_called() -> None:
    """Imports of pickle are forbidden in .importlinter.toml. rpyc, torch and numpy could still unpickle."""
    for source, text in SOURCES.items():
        for name in ("recv_pyobj", "send_pyobj", "torch.load(", "read_pickle", "Unpickler"):
            assert name not in text, source
        values = re.findall(r"""allow_pickle["']?\s*[:=]\s*(\w+)""", text)
        assert values == ["False"] * text.count("allow_pickle"), source


def test_cve_2026_3059_no_internal_link_is_tcp() -> None:
    """Addresses of a server's own links are in ``ipc/links/endpoints.py``: Unix sockets in a directory of mode 0700.

    The others are named by the user: the feed of events, and links to other machines, which have keys
    (tests/integration/cluster/nodes, tests/integration/cluster/front).
    """
    named_by_the_user = {
        *("config/config.py", "config/engine_options.py", "config/event_options.py", "config/node_options.py"),
        *("cli/front.py", "cluster/front/replicas.py", "cluster/on_ray/node.py"),
        "config/options.py",  # ignores Kubernetes' variables, which begin like that
    }
    for source, text in SOURCES.items():
        assert "tcp://" not in text or source.relative_to(PACKAGE).as_posix() in named_by_the_user, source


@pytest.mark.parametrize("name", ["chat_template", "tokenize", "messages", "tools", "bos_token", "range", "__class__"])
def test_cve_2025_61620_a_request_brings_no_template_and_only_the_templates_own_variables(name: str) -> None:
    """Work and size of the rendering are limited, whatever the variables are (template/test_limits)."""
    assert "chat_template" not in ChatRequest.__struct_fields__
    source = "{{ bos_token }}{% for m in messages %}{{ m }}{% endfor %}{{ tools }}{{ range(style) }}{{ __class__ }}"
    model = replace(
        ServedModel.of(make_deployment("/nowhere")), template_variables=variables_read(source) - ALWAYS_GIVEN
    )
    body = {"model": "stub", "messages": [{"role": "user", "content": "hi"}], "chat_template_kwargs": {name: 1}}
    with pytest.raises(InvalidRequest) as refused:
        parse_chat(json.dumps(body).encode(), model)
    assert refused.value.param == f"chat_template_kwargs.{name}"
    assert parse_chat(json.dumps(body | {"chat_template_kwargs": {"style": 1}}).encode(), model)


def test_cve_2026_105754_a_request_brings_no_internal_handle_or_hash() -> None:
    fields = set(ChatRequest.__struct_fields__)
    forged = {"mm_hashes", "mm_placeholders", "multi_modal_data", "multi_modal_uuids", "prompt_embeds"}
    assert not fields & forged


@pytest.mark.parametrize("type_", ["image_embeds", "input_audio", "audio_url", "video_url", "audio_embeds"])
def test_cve_2025_62164_embeddings_audio_and_video_are_refused(type_: str) -> None:
    """Also GHSA-pq5c-rjhq-qp7p (frames without end) and vLLM's issue 44970 (audio that grows when decoded)."""
    reader = ConversationReader(16, {}, 100)
    part = {"type": type_, type_: {"url": "data:video/jpeg;base64," + "AAAA," * 10_000}}
    with pytest.raises(InvalidRequest) as refused:
        reader.read([{"role": "user", "content": [part]}])
    assert refused.value.param == "messages[0].content[0].type"
    assert len(refused.value.message) < 200


@pytest.mark.parametrize(
    "format",
    [
        {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "x" * 1_000_000}}},
        {"type": "regex", "regex": "(a+)+$"},
        "json",
    ],
)
def test_cve_2025_48944_grammars_are_refused_before_they_are_compiled(format: Any) -> None:
    """Others are compiled in a child process first: tests/integration/grammar."""
    body = msgspec.json.encode({"messages": [], "response_format": format})
    with pytest.raises(InvalidRequest) as refused:
        response_grammar(decode(body, ChatRequest).response_format)
    assert (refused.value.param or "").startswith("response_format")
    assert len(refused.value.message) < 200


@pytest.mark.parametrize("opening", [b"[", b'{"a":', b'[{"a":'])
def test_json_of_any_depth_is_refused_and_does_not_overflow_the_stack(opening: bytes) -> None:
    for field in (b"messages", b"response_format", b"unknown"):
        with pytest.raises(InvalidRequest):
            decode(b'{"%b": ' % field + opening * 200_000, ChatRequest)
