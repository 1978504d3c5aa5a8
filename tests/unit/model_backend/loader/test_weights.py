"""Loading reports a wrong tensor by name, reads only this rank's part, and reports its progress."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from mmserve.checkpoint.load import load
from mmserve.checkpoint.tensor_names import canonical_name
from mmserve.model_backend.attention.interface import AttentionSpec
from mmserve.model_backend.distributed import TpGroup
from mmserve.model_backend.layers.linear_method import LinearShape
from mmserve.model_backend.layers.target import LinearShard
from mmserve.model_backend.loader import weights
from mmserve.model_backend.loader.load import load_decoder, load_tower
from mmserve.model_backend.loader.registry import family_of
from mmserve.model_backend.platforms.cpu.linear.packing import Int4Linear, Int8Linear, KernelLinear
from mmserve.model_backend.platforms.device import platform_for
from mmserve.model_backend.platforms.reference import PlainLinear, TorchPlatform
from mmserve.model_backend.vision.clip import VisionTower
from mmserve.model_backend.worker.model_runner import ModelRunner
from mmserve.runtime.errors import StartupError
from tests.fakes.models.checkpoints import make_llama, make_llava
from tests.fakes.pictures.embeddings import tiles
from tests.fakes.ranks.engine import deployment, make_runner
from tests.unit.model_backend.platforms.cpu.kernels import kernels, needs_compiler

Q_PROJ = "model.layers.1.self_attn.q_proj.weight"
Tensors = dict[str, torch.Tensor]


def edit(directory: Path, change: Callable[[Tensors], object]) -> None:
    tensors = load_file(directory / "model.safetensors")
    change(tensors)
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop(Q_PROJ), "layers.1.self_attn.q_proj.weight"),
        (lambda t: t.update({"model.layers.0.extra.weight": torch.zeros(2)}), "model.layers.0.extra.weight"),
        (lambda t: t.update({"stray": torch.zeros(2)}), "stray"),
        (lambda t: t.update({Q_PROJ: torch.zeros(3, 5)}), "q_proj.*shape"),
        (lambda t: t.update({Q_PROJ: t[Q_PROJ].to(torch.int8)}), "q_proj.*dtype"),
    ],
)
def test_a_wrong_tensor_is_named(tmp_path: Path, change: Callable[[Tensors], object], message: str) -> None:
    edit(make_llama(tmp_path), change)
    with pytest.raises(StartupError, match=message):
        make_runner(tmp_path)


def test_a_truncated_file_is_named(tmp_path: Path) -> None:
    file = make_llama(tmp_path) / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(StartupError, match=r"model\.safetensors"):
        make_runner(tmp_path)


def test_stored_constants_are_skipped(tmp_path: Path) -> None:
    edit(make_llama(tmp_path), lambda t: t.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(4)}))
    make_runner(tmp_path).warm_up()


@pytest.mark.parametrize("size", [2, 4])
def test_ranks_hold_disjoint_parts_that_make_up_the_checkpoint(tmp_path: Path, size: int) -> None:
    stored = load_file(make_llama(tmp_path, attention_bias=True, vocab_size=261) / "model.safetensors")
    spec, family, reported = load(tmp_path).text, family_of("llama"), []
    platform = TorchPlatform(torch.device("cpu"), torch.float32)
    models = []
    for rank in range(size):
        attention = platform.attention(AttentionSpec(8 // size, 4 // size, spec.head_dim), torch.float32)
        model = family.decoder(spec, attention, platform.layer_context(TpGroup(rank, size)))
        weights.load(
            tmp_path,
            ("text.",),
            partial(canonical_name, "llama"),
            model.targets(),
            lambda *event: reported.append(event),
        )
        assert reported[-1] == (reported[-1][1], reported[-1][1], "bytes")
        assert [done for done, *_ in reported] == sorted(done for done, *_ in reported)
        reported.clear()
        models.append(model.targets())
    by_rows, by_columns = ("q_proj", "k_proj", "v_proj", "gate", "up_proj", "embed", "lm_head"), ("o_proj.w", "down")
    split = dict.fromkeys(by_rows, 0) | dict.fromkeys(by_columns, 1)
    for name, tensor in stored.items():
        canonical = "text." + name.removeprefix("model.")
        parts = [model[canonical].into for model in models]
        dim = next((dim for part, dim in split.items() if part in name), None)
        whole = parts[0] if dim is None else torch.cat(parts, dim)
        torch.testing.assert_close(whole, tensor, rtol=0, atol=0)


def test_each_layer_is_packed_when_its_tensors_are_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At most the tensors of one layer are in memory unpacked; the next layer's are not read before."""
    unpacked, most = 0, 0

    def read(part: weights._Part, copy: object) -> None:
        nonlocal unpacked, most
        if part.stored.target.into.dim() == 2:
            unpacked += part.stored.target.into.numel()
            most = max(most, unpacked)

    def pack(method: PlainLinear) -> None:
        nonlocal unpacked
        unpacked -= method.weight.numel()

    monkeypatch.setattr(weights._Part, "load", read)
    monkeypatch.setattr(PlainLinear, "finish_loading", pack)
    platform = TorchPlatform(torch.device("cpu"), torch.float32)
    spec = load(make_llama(tmp_path, vocab_size=272))  # which is not padded
    text = spec.text
    attention = platform.attention(AttentionSpec(text.num_heads, text.num_kv_heads, text.head_dim), torch.float32)
    load_decoder(spec, platform, attention, TpGroup(), "none", lambda *_: None)
    assert unpacked == 0
    assert 0 < most <= max(2 * text.intermediate_size, text.vocab_size) * text.hidden_size


@needs_compiler
@pytest.mark.parametrize("make", [KernelLinear, Int8Linear, Int4Linear])
def test_packing_frees_the_loaded_weights_although_targets_exist(make: type[KernelLinear]) -> None:
    method = make(kernels(), LinearShape.full(32, 64))
    [(_, target)] = method.targets(LinearShard("q", (32, 64), slice(0, 32), dim=0, start=0))
    method.weight.normal_()
    method.finish_loading()
    assert target.into.untyped_storage().nbytes() == 0


def test_layers_behind_the_feature_layer_may_be_missing(tmp_path: Path) -> None:
    behind = ("vision_tower.encoder.layers.2.", "vision_tower.post_layernorm.")
    edit(make_llava(tmp_path), lambda t: [t.pop(name) for name in list(t) if name.startswith(behind)])
    model = load(tmp_path)
    tower = load_tower(model, platform_for("cpu", "bfloat16"), lambda *_: None)
    assert isinstance(tower, VisionTower)
    assert len(tower.layers) == 2
    assert tower(tiles(torch.zeros(2, 3, 28, 28)))[1].isfinite().all()


def test_a_text_model_has_no_tower(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="text model"):
        load_tower(load(make_llama(tmp_path)), platform_for("cpu", "float32"), lambda *_: None)


def test_a_number_of_ranks_that_does_not_divide_the_heads_is_refused(tmp_path: Path) -> None:
    made = deployment(make_llama(tmp_path))
    with pytest.raises(StartupError, match="--tp 3"):
        ModelRunner(made, TpGroup(0, 3), None, platform_for("cpu", "float32"), lambda *_: None)
