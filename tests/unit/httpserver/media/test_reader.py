"""Reading the images of a request: sources, limits, content keys, and what is refused."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pybase64
import pytest

from mmserve.httpserver.call import AllocVersion, MediaItem, MediaRef
from mmserve.httpserver.limits.media_budgets import RequestByteLimit
from mmserve.httpserver.media import reader as reader_module
from mmserve.httpserver.media.local import read_data_url, read_file_url
from mmserve.httpserver.media.reader import MediaReader
from mmserve.messages.media import DEFAULT_PROCESSING, Processing
from mmserve.processors.image_files.picture import header
from mmserve.runtime.errors import MediaError, MmserveError, TooLarge
from mmserve.runtime.worker_threads import MIN_BATCH_NBYTES
from tests.fakes.models.chat_models import deployment_of, write_chat_model
from tests.fakes.pictures.media import encoded, picture, png
from tests.fakes.processes.samples import Samples


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_chat_model(tmp_path_factory.mktemp("llava"))


def read(
    model: Path,
    urls: Sequence[str],
    *,
    salt: str = "",
    processing: Processing = DEFAULT_PROCESSING,
    samples: Samples | None = None,
    alloc_version: AllocVersion = "v2",
    **config: Any,
) -> list[MediaItem]:
    async def run() -> list[MediaItem]:
        deployment = deployment_of(model, **config)
        reader = MediaReader(deployment, samples or Samples(), alloc_version)  # type: ignore[arg-type]
        try:
            return await reader.read(
                [MediaRef(url, f"part{index}") for index, url in enumerate(urls)], salt, processing
            )
        finally:
            await reader.aclose()

    return asyncio.run(run())


def data_url(data: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{pybase64.b64encode_as_string(data)}"


def refused(model: Path, url: str, **config: Any) -> MmserveError:
    with pytest.raises(MmserveError) as caught:
        read(model, [data_url(png()), url], **config)
    assert caught.value.param == "part1"
    return caught.value


@pytest.mark.parametrize("alloc_version", ["v1", "v2"])
def test_many_images_come_back_in_order(model: Path, alloc_version: AllocVersion) -> None:
    pictures = [png(seed, width=20 + seed, height=10 + seed) for seed in range(12)]
    samples = Samples()
    items = read(model, list(map(data_url, pictures)), samples=samples, alloc_version=alloc_version)
    assert [item.data for item in items] == pictures
    assert [(item.width, item.height) for item in items] == [(20 + seed, 10 + seed) for seed in range(12)]
    assert [item.param for item in items] == [f"part{index}" for index in range(12)]
    assert len({item.key for item in items}) == 12
    labelled = [(name, labels) for name, _, labels in samples.recorded]
    assert labelled == [("mm_fetch_seconds", (alloc_version,)), ("mm_hash_seconds", (alloc_version,))]


def test_large_images_are_read_in_parallel(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each read waits until all others have started, so fewer threads than images would time out."""
    together = threading.Barrier(3)

    def read_together(ref: MediaRef, budget: RequestByteLimit) -> bytes:
        together.wait(20)
        return read_data_url(ref, budget)

    monkeypatch.setattr(reader_module, "read_data_url", read_together)
    pictures = [png(seed) + os.urandom(MIN_BATCH_NBYTES) for seed in range(3)]
    items = read(model, list(map(data_url, pictures)), concurrent_alloc_workers=3)
    assert [item.data for item in items] == pictures


def test_data_urls_of_every_accepted_form(model: Path) -> None:
    data = png()
    text = pybase64.b64encode_as_string(data)
    urls = [
        f"data:image/png;base64,{text}",
        f"DATA:;BASE64,{text}",
        f"data:text/plain;charset=utf-8;base64,{text}",
        f"data:image/png;base64,{quote(text, safe='')}",
        f"data:image/png,{quote(data)}",
        f"data:,{quote(data)}",
    ]
    items = read(model, urls)
    assert [item.data for item in items] == [data] * len(urls)
    assert len({item.key for item in items}) == 1


@pytest.mark.parametrize(
    "url",
    [
        "data:image/png;base64",
        "data:image/png;base64,@@@@",
        "data:image/png;base64,aGVsbG8",
        "data:image/png;base64,aGVs bG8=",
        "data:image/png;base64,é",
        "data:image/png;base64,",
        "data:,",
        "data:image/png;base64,aGVsbG8=",
        "ftp://example.com/a.png",
        "//example.com/a.png",
        "example.png",
        "",
        "javascript:alert(1)",
    ],
)
def test_bad_urls_are_refused_with_their_field(model: Path, url: str) -> None:
    error = refused(model, url)
    assert isinstance(error, MediaError)
    assert error.status == 400
    assert not url or url not in error.message


def test_error_messages_contain_no_data_or_path(model: Path) -> None:
    secret = pybase64.b64encode_as_string(b"my very secret bytes")
    assert secret[:8] not in refused(model, f"data:image/png;base64,{secret}").message
    assert "secret" not in refused(model, "file:///secret/place.png", allowed_local_media_path="/tmp").message


def test_too_many_pixels_are_refused_from_the_header(model: Path) -> None:
    bomb = encoded(picture(1, 1).resize((3000, 3000)))
    assert "too large" in refused(model, data_url(bomb), max_image_pixels=1_000_000).message


def test_all_images_of_a_request_share_one_byte_limit(model: Path) -> None:
    noise = [png() + os.urandom(400_000) for _ in range(3)]
    with pytest.raises(TooLarge, match="1 MiB in all") as caught:
        read(model, [data_url(data) for data in noise], max_body_mb=1.0)
    assert caught.value.status == 413


def test_a_request_without_images_is_not_measured(model: Path) -> None:
    samples = Samples()
    assert read(model, [], samples=samples) == []
    assert samples.recorded == []


def test_a_text_model_refuses_images(tmp_path: Path) -> None:
    with pytest.raises(MediaError, match="no images"):
        read(write_chat_model(tmp_path, images=False), [data_url(png())])


def test_keys_depend_on_content_salt_and_model(model: Path, tmp_path: Path) -> None:
    other_model = write_chat_model(tmp_path)
    url, other = data_url(png(1)), data_url(png(2))
    keys = [
        read(model, [url])[0].key,
        read(model, [other])[0].key,
        read(model, [url], salt="tenant")[0].key,
        read(other_model, [url])[0].key,
    ]
    assert all(len(key) == 16 for key in keys)
    assert len(set(keys)) == 4
    assert read(model, [url])[0].key == keys[0]
    assert read(model, [url], alloc_version="v1")[0].key == keys[0]


def test_keys_depend_on_what_a_request_changes_and_not_on_how_it_says_it(model: Path) -> None:
    url = data_url(png(1))

    def key(options: str, count: int = 1) -> bytes:
        (item,) = read(model, [url], processing=Processing(options, count))
        assert item.processing == Processing(options, count)
        return item.key

    squashed, as_served = key('{"do_center_crop":false,"size":{"height":28,"width":28}}'), key("")
    assert squashed != as_served
    assert key('{"size":{"width":28,"height":28},"do_center_crop":false}', 3) == squashed
    assert key('{"do_center_crop":true}', 2) == as_served


def test_keys_depend_on_the_mode_that_the_header_names(model: Path) -> None:
    """The mode decides which pixels the bytes decode to."""
    grey, coloured = encoded(picture(mode="L")), encoded(picture(mode="RGB"))
    assert [header(data, 10_000).mode for data in (grey, coloured)] == ["L", "RGB"]
    keys = {item.key for item in read(model, [data_url(grey), data_url(coloured)])}
    assert len(keys) == 2


@pytest.mark.parametrize("name", ["xxh3", "sha256"])
def test_the_hash_is_the_configured_one(model: Path, name: str) -> None:
    (item,) = read(model, [data_url(png())], mm_hash=name)
    assert len(item.key) == {"xxh3": 16, "sha256": 32}[name]


def test_files_below_the_allowed_directory_are_read(model: Path, tmp_path: Path) -> None:
    (tmp_path / "allowed" / "deep er").mkdir(parents=True)
    (tmp_path / "allowed" / "deep er" / "a.png").write_bytes(png())
    (tmp_path / "allowed" / "inside").symlink_to(tmp_path / "allowed" / "deep er")
    root = str(tmp_path / "allowed")
    for name in ("deep%20er/a.png", "inside/a.png", "deep%20er/../inside/a.png"):
        assert read(model, [f"file://{root}/{name}"], allowed_local_media_path=root)[0].data == png()
    assert read(model, [f"file://localhost{root}/inside/a.png"], allowed_local_media_path=root)[0].data == png()


@pytest.mark.parametrize(
    "name",
    [
        "../outside.png",
        "%2e%2e/outside.png",
        "..%2foutside.png",
        "link.png",
        "linkdir/outside.png",
        "missing.png",
        "pipe",
        "",
        "a%00.png",
        "x" * 5000,
    ],
)
def test_files_elsewhere_are_refused(model: Path, tmp_path: Path, name: str) -> None:
    root = tmp_path / "allowed"
    root.mkdir()
    (tmp_path / "outside.png").write_bytes(png())
    (root / "link.png").symlink_to(tmp_path / "outside.png")
    (root / "linkdir").symlink_to(tmp_path)
    os.mkfifo(root / "pipe")
    error = refused(model, f"file://{root}/{name}", allowed_local_media_path=str(root))
    assert isinstance(error, MediaError)
    assert "outside" not in error.message
    assert str(tmp_path) not in error.message


@pytest.mark.parametrize("swapped", ["link.png", "dir"])
def test_a_symlink_replaced_between_check_and_open_is_refused(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, swapped: str
) -> None:
    """The checked path is inside the allowed directory; the open follows the new link to a file outside."""
    root = tmp_path / "allowed"
    for directory in (root / "inside", tmp_path / "outside"):
        directory.mkdir(parents=True)
        (directory / "a.png").write_bytes(png())
    (root / "link.png").symlink_to(root / "inside" / "a.png")
    (root / "dir").symlink_to(root / "inside")
    name = "link.png" if swapped == "link.png" else "dir/a.png"
    options = {"allowed_local_media_path": str(root)}
    assert read(model, [f"file://{root}/{name}"], **options)[0].data == png()
    open_file, num_swaps = os.open, 0

    def swap_and_open(path: Any, flags: int, *args: Any, **named: Any) -> int:
        nonlocal num_swaps
        if os.fspath(path) == f"{root}/{name}":
            num_swaps += 1
            (root / swapped).unlink()
            (root / swapped).symlink_to(tmp_path / "outside" / ("a.png" if swapped == "link.png" else ""))
        return open_file(path, flags, *args, **named)

    monkeypatch.setattr(os, "open", swap_and_open)
    error = refused(model, f"file://{root}/{name}", **options)
    assert num_swaps == 1
    assert isinstance(error, MediaError)
    assert "outside" not in error.message


@pytest.mark.parametrize("url", ["file:///etc/hostname", "file://host/a.png", "file:a.png", "file:///dev/zero"])
def test_files_need_an_allowed_directory(model: Path, tmp_path: Path, url: str) -> None:
    assert "not allowed" in refused(model, url).message
    assert isinstance(refused(model, url, allowed_local_media_path=str(tmp_path)), MediaError)


def test_files_are_read_in_parallel_because_their_size_is_unknown(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = threading.Barrier(3)

    def read_together(url: str, root: str | None, budget: RequestByteLimit) -> bytes:
        together.wait(20)
        return read_file_url(url, root, budget)

    monkeypatch.setattr(reader_module, "read_file_url", read_together)
    files = [tmp_path / f"{seed}.png" for seed in range(3)]
    for seed, file in enumerate(files):
        file.write_bytes(png(seed))
    options = {"concurrent_alloc_workers": 3, "allowed_local_media_path": str(tmp_path)}
    items = read(model, [file.as_uri() for file in files], **options)
    assert [item.data for item in items] == [png(seed) for seed in range(3)]


def test_a_sibling_with_the_same_prefix_is_outside(model: Path, tmp_path: Path) -> None:
    (tmp_path / "allowed").mkdir()
    (tmp_path / "allowed-not").mkdir()
    (tmp_path / "allowed-not" / "a.png").write_bytes(png())
    refused(model, f"file://{tmp_path}/allowed-not/a.png", allowed_local_media_path=str(tmp_path / "allowed"))
