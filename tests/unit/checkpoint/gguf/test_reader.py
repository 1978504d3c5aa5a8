"""A GGUF file's header is read; damaged files, and types that are not supported, are refused with the reason."""

from __future__ import annotations

import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmserve.checkpoint.gguf.reader import read_header
from mmserve.runtime.errors import StartupError
from tests.fakes.formats.gguf_files import Tensor, write_gguf
from tests.fakes.formats.gguf_formats import BLOCK_FORMATS

VALUES = {"a": 3, "b": 0.5, "c": True, "d": "größer", "e": [1, 2, 3], "f": ["x", "yy"], "general.architecture": "llama"}
ONES = Tensor("F32", (2, 4), struct.pack("<8f", *[1.0] * 8))


def file_with(tmp_path: Path, tensors: dict[str, Tensor] | None = None, **values: Any) -> Path:
    return write_gguf(tmp_path / "model.gguf", VALUES | values, {"w": ONES} if tensors is None else tensors)


def test_values_and_tensors_are_those_that_were_written(tmp_path: Path) -> None:
    other = Tensor("F16", (3,), bytes(6))
    path = file_with(tmp_path, {"first": other, "second": ONES})
    metadata, tensors = read_header(path)
    assert metadata == VALUES
    assert [(each.name, each.kind.name, each.shape, each.nbytes) for each in tensors.values()] == [
        ("first", "F16", (3,), 6),
        ("second", "F32", (2, 4), 32),
    ]
    start = tensors["second"].start
    assert path.read_bytes()[start : start + 32] == ONES.data


@pytest.mark.parametrize("kind", [*BLOCK_FORMATS, "F16", "BF16"])
def test_a_tensor_has_the_bytes_of_its_blocks(tmp_path: Path, kind: str) -> None:
    bits = {"F16": 16, "BF16": 16, "Q4_0": 4.5, "Q4_1": 5, "Q5_0": 5.5, "Q5_1": 6, "Q8_0": 8.5}
    bits |= {"Q4_K": 4.5, "Q5_K": 5.5, "Q6_K": 6.5625}
    nbytes = int(bits[kind] * 512 / 8)
    _, tensors = read_header(file_with(tmp_path, {"w": Tensor(kind, (2, 256), bytes(nbytes))}))
    assert tensors["w"].nbytes == nbytes


@pytest.mark.parametrize("kind", ["Q2_K", "IQ4_XS"])
def test_other_types_of_tensors_are_refused_by_name(tmp_path: Path, kind: str) -> None:
    with pytest.raises(StartupError, match=f"tensor w is of type {kind}, which is not supported; supported are F32"):
        read_header(file_with(tmp_path, {"w": Tensor(kind, (1, 256), bytes(512))}))


def test_every_file_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    whole = file_with(tmp_path).read_bytes()
    cut = tmp_path / "cut.gguf"
    for end in range(len(whole)):
        cut.write_bytes(whole[:end])
        with pytest.raises(StartupError, match="is not a readable GGUF file"):
            read_header(cut)


@given(at=st.integers(0, 400), byte=st.integers(0, 255))
def test_a_damaged_byte_gives_a_startup_error_or_other_values(
    tmp_path_factory: pytest.TempPathFactory, at: int, byte: int
) -> None:
    directory = tmp_path_factory.mktemp("damaged")
    content = bytearray(file_with(directory).read_bytes())
    content[at % len(content)] = byte
    (directory / "damaged.gguf").write_bytes(content)
    with suppress(StartupError):  # and no other exception
        read_header(directory / "damaged.gguf")


def header(num_tensors: int, num_values: int, rest: bytes = b"", *, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, num_tensors, num_values) + rest + bytes(64)


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "cannot mmap an empty file"),
        (b"safetensors", "does not begin with GGUF"),
        (header(0, 0, version=1), "version 1 is not among 2, 3"),
        (header(0, 0, version=3 << 24), "version 50331648"),
        (header(1 << 40, 0), "1099511627776 tensors are too many"),
        (header(0, 1 << 40), "1099511627776 key-values are too many"),
        (header(0, 1, struct.pack("<Q", 1 << 50)), "a string of 1125899906842624 bytes is too long"),
        (header(0, 1, text("k") + struct.pack("<I", 77)), "unknown type of value 77"),
        (header(0, 1, text("k") + struct.pack("<IIQ", 9, 4, 1 << 40)), "an array is longer than the file"),
        (header(0, 1, text("k") + struct.pack("<IIQ", 9, 9, 1)), "arrays of type 9"),
        (header(0, 2, 2 * (text("k") + struct.pack("<IB", 0, 1))), "'k' is there twice"),
        (header(1, 0, text("w") + struct.pack("<I", 9)), "tensor 'w' has 9 dimensions"),
        (header(1, 0, text("w") + struct.pack("<IQIQ", 1, 1 << 62, 0, 0)), "ends behind the file"),
        (header(1, 0, text("w") + struct.pack("<IQIQ", 1, 0, 0, 0)), "tensor 'w' is empty"),
        (header(1, 0, text("w") + struct.pack("<IQIQ", 1, 33, 8, 0)), "rows of 33 numbers, which Q8_0 cannot store"),
        (header(1, 0, text("w") + struct.pack("<IQIQ", 1, 1, 0, 4)), "'w' is not aligned to 32 bytes"),
    ],
)
def test_a_malformed_file_is_refused_with_the_reason(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(content)
    with pytest.raises(StartupError, match=reason):
        read_header(path)


@pytest.mark.parametrize("alignment", [0, 3, 1 << 30, "much"])
def test_an_alignment_that_is_no_small_power_of_two_is_refused(tmp_path: Path, alignment: object) -> None:
    with pytest.raises(StartupError, match=r"general\.alignment"):
        read_header(file_with(tmp_path, **{"general.alignment": alignment}))
