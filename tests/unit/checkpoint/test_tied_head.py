"""A stored output head that differs from the embedding is used although the config ties them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from mmserve.checkpoint import stored_tensors
from mmserve.checkpoint.tied_head import has_own_head

EMBEDDING = torch.arange(40.0).view(8, 5)


def stored(directory: Path, *files: dict[str, torch.Tensor]) -> list[Path]:
    paths = [directory / f"{number}.safetensors" for number in range(len(files))]
    for path, tensors in zip(paths, files, strict=True):
        save_file({name: tensor.clone().contiguous() for name, tensor in tensors.items()}, path)
    return paths


@pytest.mark.parametrize("chunk_nbytes", [7, 1 << 20])
@pytest.mark.parametrize("prefix", ["", "language_model."])
def test_a_head_is_its_own_if_it_differs_from_the_embedding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prefix: str, chunk_nbytes: int
) -> None:
    monkeypatch.setattr(stored_tensors, "CHUNK_NBYTES", chunk_nbytes)
    last = EMBEDDING.clone()
    last[-1, -1] = 0
    for head, own in ((EMBEDDING.clone(), False), (last, True), (EMBEDDING.bfloat16(), True), (last[:4], True)):
        embedding = {f"{prefix}model.embed_tokens.weight": EMBEDDING, "other": EMBEDDING + 1}
        assert has_own_head(stored(tmp_path, embedding, {f"{prefix}lm_head.weight": head})) is own
        assert has_own_head(stored(tmp_path, embedding | {f"{prefix}lm_head.weight": head})) is own


def test_a_single_stored_matrix_is_tied(tmp_path: Path) -> None:
    assert not has_own_head(stored(tmp_path, {"model.embed_tokens.weight": EMBEDDING}))
    assert not has_own_head(stored(tmp_path, {"lm_head.weight": EMBEDDING}))


@pytest.mark.parametrize("content", [b"", b"\xff" * 20, b"\x05" + b"\0" * 7 + b"[1,2]", b"\x20" + b"\0" * 7 + b"{"])
def test_unreadable_files_have_no_own_head(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "broken").write_bytes(content)
    assert not has_own_head([tmp_path / "broken", tmp_path / "missing"])
