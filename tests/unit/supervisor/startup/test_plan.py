"""Config, model and machine -> Deployment."""

from __future__ import annotations

import platform
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import structs

from mmserve.checkpoint.quantization.scheme import QuantizationScheme
from mmserve.checkpoint.spec import LayerSpec, ModelSpec, TextSpec
from mmserve.checkpoint.vision.clip import ClipVision
from mmserve.config.config import Config
from mmserve.config.resolved.deployment import Deployment
from mmserve.runtime.errors import StartupError
from mmserve.supervisor.startup import plan
from mmserve.supervisor.startup.machine import Machine
from mmserve.supervisor.topology import members, render, topology
from tests.fakes.models.weight_files import sparse_weights

GIB = plan.GIB
LAPTOP = Machine(memory_bytes=8 * GIB, limited_by="this machine", has_cuda=False, fast_bfloat16=False)
XEON = Machine(memory_bytes=8 * GIB, limited_by="this machine", has_cuda=False, fast_bfloat16=True)
GPU = Machine(memory_bytes=8 * GIB, limited_by="this machine", has_cuda=True, fast_bfloat16=False)
VISION = ClipVision(
    image_size=336,
    patch_size=14,
    hidden_size=1024,
    intermediate_size=4096,
    num_layers=24,
    num_heads=16,
    layer_norm_eps=1e-5,
    activation="quick_gelu",
    feature_layer=-2,
    select_strategy="default",
    projector_activation="gelu",
    projector_bias=True,
)


@pytest.fixture
def model(tmp_path: Path) -> ModelSpec:
    sparse_weights(tmp_path, {"model.norm.weight": 1 << 19})
    text = TextSpec(
        hidden_size=4096,
        intermediate_size=11008,
        layers=(LayerSpec(),) * 32,
        num_heads=32,
        num_kv_heads=8,
        head_dim=128,
        vocab_size=32000,
        max_position=4096,
        rms_eps=1e-5,
    )
    return ModelSpec(family="llava", path=str(tmp_path), text=text, vision=VISION, checkpoint_dtype="float16")


_PLACE = {"run_dir": "/run/x", "url": "http://127.0.0.1:1"}


def _make(model: ModelSpec, machine: Machine = LAPTOP, **options: object) -> Deployment:
    config, rows = Config(**options), VISION.num_rows if model.vision is not None else 0  # type: ignore[arg-type]
    return plan.make(config, model, machine, max_image_rows=rows, **_PLACE)


def _with_draft(model: ModelSpec, draft: ModelSpec, machine: Machine = LAPTOP, **options: object) -> Deployment:
    config = Config(speculative_model="draft", **options)  # type: ignore[arg-type]
    return plan.make(config, model, machine, max_image_rows=VISION.num_rows, draft=draft, **_PLACE)


def _refused(model: ModelSpec, machine: Machine = LAPTOP, **options: object) -> str:
    with pytest.raises(StartupError) as refused:
        _make(model, machine, **options)
    assert "\n" not in str(refused.value)
    return str(refused.value)


@pytest.mark.parametrize(
    ("machine", "device", "dtype"), [(LAPTOP, "cpu", "float32"), (XEON, "cpu", "bfloat16"), (GPU, "cuda", "bfloat16")]
)
def test_auto_chooses_a_fast_dtype(machine: Machine, device: str, dtype: str, model: ModelSpec) -> None:
    assert _make(model, machine, kernel_level="avx512").dtype == ("bfloat16" if device == "cuda" else "float32")
    assert _make(model, machine, kernel_level="amx").dtype == dtype
    deployment = _make(model, machine)
    assert (deployment.device, deployment.dtype) == (device, dtype)


@pytest.mark.parametrize(("family", "on_cpu"), [("llama", "float32"), ("transformers", "bfloat16")])
def test_on_a_cpu_bfloat16_is_for_products_and_the_kv_cache(family: str, on_cpu: str, model: ModelSpec) -> None:
    model = structs.replace(model, family=family, vision=None)
    assert _make(model, XEON).activation_dtype == on_cpu
    assert _make(model, GPU).activation_dtype == "bfloat16"
    short, long = (_make(model, XEON, dtype=dtype, kv_cache_gb=4.0).kv_tokens for dtype in ("bfloat16", "float32"))
    assert long is not None
    assert short == 2 * long


def test_a_gpu_without_bfloat16_serves_in_float16(model: ModelSpec) -> None:
    old = replace(GPU, oldest_gpu=(7, 5))
    deployment = _make(model, old)
    assert (deployment.dtype, deployment.activation_dtype, deployment.kv_dtype) == ("float16",) * 3
    assert _make(model, old, dtype="float32").dtype == "float32"
    assert _make(model, old, device="cpu").dtype == "float32"
    assert _make(model, replace(GPU, oldest_gpu=(8, 0))).dtype == "bfloat16"
    for name, options in (("--dtype bfloat16", {"dtype": "bfloat16"}), ("--quantization fp8", {"quantization": "fp8"})):
        assert f"{name}: a GPU has compute capability 7.5, and bfloat16" in _refused(model, old, **options)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_cpu_takes_either_dtype_of_the_kv_cache_with_either_dtype(dtype: str, model: ModelSpec) -> None:
    short, long = (
        _make(model, XEON, dtype=dtype, kv_cache_dtype=kv_dtype, kv_cache_gb=4.0)
        for kv_dtype in ("bfloat16", "float32")
    )
    assert (short.kv_dtype, long.kv_dtype, short.dtype) == ("bfloat16", "float32", dtype)
    assert short.kv_tokens == 2 * (long.kv_tokens or 0)
    quantized = _make(model, XEON, quantization="int8", dtype=dtype, kv_cache_dtype="bfloat16")
    assert (quantized.dtype, quantized.kv_dtype) == (dtype, "bfloat16")


@pytest.mark.parametrize(
    ("family", "machine", "dtype", "kv_dtype", "accepted"),
    [
        ("llama", GPU, "bfloat16", "float32", "bfloat16 or fp8"),
        ("llama", GPU, "float32", "bfloat16", "float32 or fp8"),
        ("transformers", GPU, "bfloat16", "fp8", "bfloat16"),
        ("llama", XEON, "float32", "fp8", "float32 or bfloat16"),
        ("llama", XEON, "float32", "float16", "float32 or bfloat16"),
        ("llama", XEON, "bfloat16", "float16", "float32 or bfloat16"),
        ("llama", XEON, "float16", "bfloat16", "float16"),
        ("transformers", XEON, "float32", "bfloat16", "float32"),
        ("transformers", XEON, "bfloat16", "float32", "bfloat16"),
    ],
)
def test_another_dtype_of_the_kv_cache_than_can_be_read_is_refused(
    family: str, machine: Machine, dtype: str, kv_dtype: str, accepted: str, model: ModelSpec
) -> None:
    model = structs.replace(model, family=family, vision=None)
    assert _make(model, machine, dtype=dtype).kv_dtype == dtype
    refusal = _refused(model, machine, dtype=dtype, kv_cache_dtype=kv_dtype)
    assert f"--kv-cache-dtype {kv_dtype}" in refusal
    assert refusal.endswith(f"leave it out, or choose {accepted}")


def test_a_gpu_takes_fp8_in_half_the_bytes(model: ModelSpec) -> None:
    model = structs.replace(model, vision=None)
    short, long = (_make(model, GPU, kv_cache_dtype=dtype, kv_cache_gb=4.0) for dtype in ("fp8", "auto"))
    assert (short.kv_dtype, short.dtype, long.kv_dtype) == ("fp8", "bfloat16", "bfloat16")
    assert short.kv_tokens == 2 * (long.kv_tokens or 0)


def test_given_options_are_kept(model: ModelSpec) -> None:
    deployment = _make(model, GPU, device="cpu", dtype="float16", max_model_len=1024)
    assert (deployment.device, deployment.dtype, deployment.max_model_len) == ("cpu", "float16", 1024)


def test_quantized_weights_are_counted_as_they_are_kept(model: ModelSpec) -> None:
    """Of a model with 6.07e9 weights in layers and 0.26e9 in embedding and head, 28 GiB in float32."""
    sparse_weights(Path(model.path), {"model.layers.0.weight": 7 * GIB})
    options = {"mm_cache_gb": 0, "kv_cache_gb": 2, "max_model_len": 1024}
    sixteen = replace(LAPTOP, memory_bytes=16 * GIB)
    assert "too little memory" in _refused(model, sixteen, **options)
    assert _make(model, sixteen, quantization="int8", **options).config.quantization == "int8"
    assert _make(model, replace(LAPTOP, memory_bytes=12 * GIB), quantization="int4", **options)
    assert "too little memory" in _refused(model, LAPTOP, quantization="int8", **options)


def test_cuda_without_a_gpu_is_refused(model: ModelSpec) -> None:
    assert "--device cpu" in _refused(model, device="cuda")
    without = replace(LAPTOP, cuda_problem="the CUDA driver sees no GPU")
    assert "the CUDA driver sees no GPU" in _refused(model, without, device="cuda")
    assert _make(model, without).device == "cpu"


@pytest.mark.parametrize(
    ("model_name", "served"), [("llava", "llava"), ("org/Name-7b", "Name-7b"), ("/a/b/", "b"), ("/a/b/.", "b")]
)
def test_clients_see_the_base_name(model_name: str, served: str, model: ModelSpec) -> None:
    place = {"run_dir": "/run/x", "url": "http://127.0.0.1:1"}
    assert plan.make(Config(model=model_name), model, LAPTOP, **place).served_name == served
    named = Config(model=model_name, served_model_name=("mine", "yours"))
    assert plan.make(named, model, LAPTOP, **place).served_name == "mine"


def test_the_context_is_the_models_or_less(model: ModelSpec) -> None:
    assert _make(model).max_model_len == 4096
    assert "--max-model-len 5000" in _refused(model, max_model_len=5000)


def test_a_context_without_room_for_an_image_is_refused(model: ModelSpec) -> None:
    assert "--max-model-len 576" in _refused(model, max_model_len=576)


def test_a_step_without_room_for_an_image_is_refused_where_it_is_computed_in_one(model: ModelSpec) -> None:
    options = {"max_num_batched_tokens": 583, "max_num_seqs": 9}
    assert _make(model, **options)
    layers = (LayerSpec(), LayerSpec(whole_images=True))
    whole = structs.replace(model, text=structs.replace(model.text, layers=layers))
    assert "raise it to 584" in _refused(whole, **options)
    assert _make(whole, max_num_batched_tokens=584, max_num_seqs=9)


def test_tp_must_divide_the_heads(model: ModelSpec) -> None:
    assert "--tp 3" in _refused(model, tp=3)


def test_kv_cache_gb_is_per_rank(model: ModelSpec) -> None:
    one = _make(model, kv_cache_gb=2.0, dtype="float16").kv_tokens
    two = _make(model, kv_cache_gb=2.0, dtype="float16", tp=2).kv_tokens
    # 32 layers x keys and values x 8 heads x 128 x 2 bytes = 128 KiB a token.
    assert one == 2 * GIB // (128 * 1024)
    assert two == 2 * one


def test_a_kv_cache_smaller_than_a_context_is_refused(model: ModelSpec) -> None:
    said = _refused(model, kv_cache_gb=0.1)
    assert "--kv-cache-gb 0.1" in said
    assert "--max-model-len" in said


def test_the_default_kv_cache_holds_a_context_and_no_more_than_all_sequences_need(model: ModelSpec) -> None:
    assert _make(model, max_model_len=1024, max_num_seqs=1).kv_tokens == 1024 + 31
    tokens = _make(model, XEON).kv_tokens
    assert tokens is not None
    assert tokens * plan.kv_token_nbytes(model, 1, 2) <= GIB


@pytest.mark.parametrize("block_tokens", [8, 16, 32])
@pytest.mark.parametrize("max_model_len", [1000, 1023, 1024])
def test_the_default_kv_cache_holds_a_context_in_whole_blocks(
    max_model_len: int, block_tokens: int, model: ModelSpec
) -> None:
    tokens = _make(model, max_model_len=max_model_len, max_num_seqs=1).kv_tokens
    assert tokens is not None
    assert tokens // block_tokens * block_tokens >= max_model_len


def test_on_a_gpu_the_rank_measures_the_kv_cache_size(model: ModelSpec) -> None:
    assert _make(model, GPU).kv_tokens is None
    assert _make(model, GPU, kv_cache_gb=2.0).kv_tokens is not None


@pytest.mark.parametrize("options", [{"kv_cache_gb": 9999.0}, {"mm_cache_gb": 9999.0}])
def test_too_little_memory_names_the_flags(options: dict[str, float], model: ModelSpec) -> None:
    said = _refused(model, **options)
    assert "--kv-cache-gb" in said
    assert "--mm-cache-gb" in said
    assert "this machine" in said


def test_an_arena_too_small_for_one_image_is_refused(model: ModelSpec) -> None:
    assert "--mm-cache-gb 0.001" in _refused(model, mm_cache_gb=0.001)


def test_no_arena_at_all_is_a_choice(model: ModelSpec) -> None:
    assert _make(model, mm_cache_gb=0.0).arena_nbytes == 0


def test_an_arena_in_huge_pages_may_exceed_available_memory(model: ModelSpec) -> None:
    assert _make(model, mm_cache_gb=9.0, arena_huge_pages=True).arena_nbytes == 9 * GIB
    assert "--mm-cache-gb" in _refused(model, mm_cache_gb=9.0)


def test_two_starts_have_two_hash_seeds(model: ModelSpec) -> None:
    assert _make(model).hash_seed != _make(model).hash_seed


def test_servers_share_a_hash_seed_that_was_given(model: ModelSpec) -> None:
    assert _make(model, mm_hash_seed=0).hash_seed == 0
    assert _make(model, mm_hash_seed=7).hash_seed == 7
    for given, expected in ((None, 8), (7, 7)):
        config = Config(mm_hash_seed=given)
        assert plan.make(config, model, LAPTOP, shared_seed=8, **_PLACE).hash_seed == expected


def test_topology_counts_and_titles(model: ModelSpec) -> None:
    deployment = _make(model, tp=2, http_workers=2, visual_workers=1)
    roles = topology(deployment)
    assert [member.title for member in members(roles)] == [
        "fork_server",
        "torch_fork_server",
        "metrics",
        "health",
        "cache_server",
        "model_backend rank 0",
        "model_backend rank 1",
        "router",
        "visualserver 0",
        "httpserver 0",
        "httpserver 1",
    ]
    assert all(role.name in render(roles, deployment) for role in roles)


def test_what_the_fork_server_with_torch_imports(model: ModelSpec) -> None:
    text = ModelSpec(family="llama", path=model.path, text=model.text)
    generic = ModelSpec(family="transformers", path=model.path, text=model.text)
    node = {"tp": 2, "nnodes": 2, "head": "10.0.0.1", "cluster_key_file": "key", "node_rank": 1}
    ranks, towers = "mmserve.model_backend.run", "mmserve.visualserver.run"
    for deployment, preloads in (
        (_make(model), (ranks, towers)),
        (_make(text), (ranks,)),
        (_make(model, **node), (ranks,)),
        (_make(generic), (ranks, "mmserve.model_backend.models.generic.load")),
    ):
        found = {role.name: role.preloads for role in topology(deployment)}
        assert found["torch_fork_server"] == preloads


def test_ranks_are_divided_among_nodes(model: ModelSpec) -> None:
    nodes = {"tp": 4, "nnodes": 2, "head": "10.0.0.1", "cluster_key_file": "key"}
    head, node = _make(model, **nodes), _make(model, node_rank=1, **nodes)
    titles = [[member.title for member in members(topology(each))] for each in (head, node)]
    assert [title for title in titles[0] if title in ("nodes", "router") or "rank" in title] == [
        "nodes",
        "model_backend rank 0",
        "model_backend rank 1",
        "router",
    ]
    assert titles[1] == ["torch_fork_server", "node", "model_backend rank 2", "model_backend rank 3"]
    assert node.arena_nbytes < head.arena_nbytes


def test_a_node_needs_memory_for_its_own_ranks(model: ModelSpec) -> None:
    alone = {"tp": 4, "kv_cache_gb": 3}
    assert "too little memory" in _refused(model, LAPTOP, **alone)
    _make(model, LAPTOP, nnodes=4, head="10.0.0.1", cluster_key_file="key", node_rank=3, **alone)


def test_embeddings_of_a_step_fit_into_one_message_to_a_node(model: ModelSpec) -> None:
    nodes = {"tp": 2, "nnodes": 2, "head": "10.0.0.1", "cluster_key_file": "key"}
    assert "lower it to 12288 or less" in _refused(model, LAPTOP, max_num_batched_tokens=16384, **nodes)


@pytest.mark.parametrize(
    ("options", "waits"),
    [
        ({}, True),
        ({"visual_devices": (0,)}, True),
        ({"visual_devices": (2, 1)}, True),
        ({"visual_devices": (2,)}, False),
    ],
)
def test_a_rank_starts_after_the_visual_servers_of_its_card(
    options: dict[str, Any], waits: bool, model: ModelSpec
) -> None:
    """Its KV cache takes what they leave. On a CPU, and beside a card of their own, nothing waits."""
    after = {role.name: role.after for role in topology(_make(model, GPU, tp=2, **options))}
    assert after["model_backend"] == (("visualserver",) if waits else ())
    assert {role.name: role.after for role in topology(_make(model))}["model_backend"] == ()
    text_only = ModelSpec(family="llama", path=model.path, text=model.text)
    assert {role.name: role.after for role in topology(_make(text_only, GPU))}["model_backend"] == ()


def test_an_encoder_needs_memory_for_neither_language_model_nor_kv_cache(model: ModelSpec) -> None:
    encoder = _make(model, LAPTOP, kv_cache_gb=30, join="10.0.0.1", cluster_key_file="key")
    assert [member.title for member in members(topology(encoder))] == ["encoder"]
    assert "at most" not in render(topology(encoder), encoder)


def test_a_text_model_needs_no_visual_server(model: ModelSpec) -> None:
    text_only = ModelSpec(family="llama", path=model.path, text=model.text)
    deployment = _make(text_only)
    assert "visualserver" not in {role.name for role in topology(deployment)}
    assert deployment.arena_nbytes == 1 << 20


def test_threads_default_to_the_number_of_cores(model: ModelSpec) -> None:
    machine = Machine(memory_bytes=8 * GIB, limited_by="this machine", has_cuda=False, fast_bfloat16=False, num_cores=6)
    assert _make(model, machine).cpu_threads == 6
    assert _make(model, machine, cpu_threads=4).cpu_threads == 4


def test_what_else_a_server_with_quantized_weights_computes_in(model: ModelSpec) -> None:
    assert _make(model, XEON, quantization="int8", dtype="float32").dtype == "float32"
    assert _make(model, XEON, quantization="int8", kernel_level="avx2").dtype == "float32"
    for form in ("int8", "int4"):
        rounded = _make(model, XEON, quantization=form)
        assert (rounded.dtype, rounded.activation_dtype, rounded.kv_dtype) == ("bfloat16", "float32", "bfloat16")
    assert "choose fp8 on a GPU" in _refused(model, GPU, quantization="int8")
    assert _make(model, GPU, quantization="fp8").dtype == "bfloat16"
    assert "is for a GPU and bfloat16" in _refused(model, GPU, quantization="fp8", dtype="float16")
    assert "is for a GPU and bfloat16" in _refused(model, XEON, quantization="fp8")
    assert "float32 or bfloat16" in _refused(model, XEON, quantization="int8", dtype="float16")


def test_a_quantized_checkpoint_is_computed_in_float32_on_a_cpu(model: ModelSpec) -> None:
    scheme = QuantizationScheme(method="AWQ", layout="awq", bits=4, group_size=128, zero_points=True)
    quantized = structs.replace(model, quantization=scheme)
    assert _make(quantized, XEON).dtype == "float32"
    assert _make(quantized, GPU).dtype == "bfloat16"
    of_gguf = structs.replace(model, quantization=QuantizationScheme(method="GGUF", layout="gguf", bits=0))
    assert "--device cpu" in _refused(of_gguf, GPU)
    assert "without --dtype" in _refused(quantized, XEON, dtype="bfloat16")
    assert "AWQ, 4 bits, groups of 128" in _refused(quantized, XEON, quantization="int4")


@pytest.mark.parametrize("options", [{"tp": 2}, {"quantization": "int8"}], ids=str)
def test_options_that_transformers_modules_do_not_have(model: ModelSpec, options: dict[str, object]) -> None:
    generic = msgspec.structs.replace(model, family="transformers", vision=None)
    assert _make(generic).model == generic
    assert "transformers' modules" in _refused(generic, **options)


def test_drafts_do_not_go_with_overlap_scheduling(model: ModelSpec) -> None:
    assert _make(model, speculative="ngram").config.speculative == "ngram"
    assert "--speculative-model" in _refused(model, speculative_model="x", overlap_scheduling=True)
    said = _refused(model, speculative="ngram", overlap_scheduling=True)
    assert "--speculative ngram" in said
    assert "--overlap-scheduling" in said


def _draft_of(model: ModelSpec, **changes: object) -> ModelSpec:
    """A text model with a quarter of the layers."""
    text = structs.replace(model.text, layers=model.text.layers[:8], **changes)
    return structs.replace(model, family="llama", text=text, vision=None)


def test_the_kv_cache_of_the_draft_model_is_part_of_the_plan(model: ModelSpec) -> None:
    options = {"kv_cache_gb": 2.5}
    plain, drafting = _make(model, **options), _with_draft(model, _draft_of(model), **options)
    assert plain.kv_tokens is not None
    assert drafting.kv_tokens == int(plain.kv_tokens / 1.25)
    assert drafting.draft is not None


def test_the_weights_of_the_draft_model_are_part_of_the_plan(model: ModelSpec) -> None:
    machine, options = replace(LAPTOP, memory_bytes=4 * GIB), {"kv_cache_gb": 2.5}
    draft = _draft_of(model)
    assert _with_draft(model, draft, machine, **options).draft is not None
    large = Path(model.path) / "large"
    large.mkdir()
    sparse_weights(large, {"model.norm.weight": 1 << 28})
    with pytest.raises(StartupError, match="too little memory"):
        _with_draft(model, structs.replace(draft, path=str(large)), machine, **options)


def test_a_draft_model_has_no_longer_contexts_than_both_models(model: ModelSpec) -> None:
    shorter = _with_draft(model, _draft_of(model, max_position=1024)).draft
    longer = _with_draft(model, _draft_of(model, max_position=100_000)).draft
    assert shorter is not None
    assert longer is not None
    assert (shorter.text.max_position, longer.text.max_position) == (1024, 4096)


def test_a_draft_model_that_cannot_be_computed_is_refused(model: ModelSpec) -> None:
    with pytest.raises(StartupError, match="--speculative-model does not go with a model that transformers"):
        _with_draft(structs.replace(model, family="transformers"), _draft_of(model))
    scheme = QuantizationScheme(method="AWQ", layout="awq", bits=4, group_size=128, zero_points=True)
    quantized = structs.replace(_draft_of(model), quantization=scheme)
    with pytest.raises(StartupError, match="--dtype float32"):
        _with_draft(model, quantized, XEON)
    assert _with_draft(model, quantized, XEON, dtype="float32").draft is not None


@pytest.mark.parametrize("choice", ["torch", "triton"])
def test_a_cpu_has_one_attention(choice: str, model: ModelSpec) -> None:
    with pytest.raises(StartupError, match=f"--attention-backend {choice} is for a GPU"):
        _make(model, LAPTOP, attention_backend=choice)
    assert _make(model, GPU, attention_backend=choice).config.attention_backend == choice


@pytest.mark.parametrize(
    ("machine", "options", "processor"),
    [
        (LAPTOP, {}, platform.machine()),
        (replace(XEON, has_tiles=True), {}, f"{platform.machine()}, products in tiles"),
        (replace(XEON, has_tiles=True), {"dtype": "float32"}, platform.machine()),
        (replace(XEON, has_tiles=True), {"kernel_level": "avx512_bf16"}, platform.machine()),
        (replace(GPU, oldest_gpu=(9, 0)), {}, "GPU 9.0"),
    ],
)
def test_servers_and_encoders_know_what_kind_of_processor_computes(
    machine: Machine, options: dict[str, object], processor: str, model: ModelSpec
) -> None:
    joined = {"join": "10.0.0.1", "cluster_key_file": "key"}
    assert _make(model, machine, **options).processor == processor
    assert _make(model, machine, **joined, **options).processor == processor
