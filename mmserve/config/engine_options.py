"""Options of the engine: the model, how its steps are scheduled, and what is told about its KV cache.

They are fields of ``config.Config`` like all others.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from mmserve.config.fields import (
    MAX_GB,
    MAX_MB,
    MAX_SEED,
    AttentionChoice,
    Device,
    Dtype,
    EventFormat,
    KernelLevel,
    KernelWays,
    KvDtype,
    ModelImpl,
    Quantization,
    RankSums,
    Speculative,
    field,
)


class EngineOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``None`` means: decided at start from the model and the machine."""

    model: Annotated[str, field("model", "packaged name (llava), checkpoint directory, or Hugging Face hub id")] = (
        "llava"
    )
    served_model_name: Annotated[
        tuple[str, ...],
        field("model", "names clients use, comma separated; the first is in answers; default: --model's base name"),
    ] = ()
    device: Annotated[Device, field("model", "where ranks and vision tower run")] = "auto"
    dtype: Annotated[
        Dtype, field("model", "weights and products; on a GPU all else too; auto: bfloat16 where it is fast")
    ] = "auto"
    quantization: Annotated[
        Quantization,
        field(
            "model",
            "language model's weights: int8, int4 on a CPU, 32 to a scale, all else as --dtype says; fp8 on a GPU, "
            "products included, embedding and head in bfloat16",
        ),
    ] = "none"
    model_impl: Annotated[
        ModelImpl,
        field("model", "code that computes the model; auto: mmserve's own where there is some, else transformers'"),
    ] = "auto"
    tp: Annotated[int, field("model", "tensor-parallel ranks, one process each", ge=1, le=64)] = 1
    rank_sums: Annotated[
        RankSums,
        field(
            "model",
            "how ranks on GPUs of one machine add up; auto: in the way that measures fastest at start for each size, "
            "NCCL or kernels on memory that all of them map",
        ),
    ] = "auto"
    cpu_threads: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        field(
            "model",
            "threads that all ranks of this machine together compute with on a CPU; default: the physical cores it may "
            "use",
        ),
    ] = None
    kernel_level: Annotated[
        KernelLevel,
        field(
            "model",
            "fastest instruction set that a CPU computes with; auto: the best it has; with all but amx and "
            "avx512_bf16, --dtype auto is float32; all give the same numbers, but amx other ones in bfloat16",
        ),
    ] = "auto"
    kernel_ways: Annotated[
        KernelWays,
        field(
            "model",
            "how a CPU divides products; the numbers are the same; auto: as measured at a model's first start on this "
            "CPU; kept: never measure, use earlier results; default: use none",
        ),
    ] = "auto"
    attention_backend: Annotated[
        AttentionChoice,
        field(
            "model",
            "attention on a GPU; auto: Triton's kernels where they pass a test at start, else torch's; flashinfer: "
            "that package's kernels, which no GPU has run here yet",
        ),
    ] = "auto"
    enforce_eager: Annotated[
        bool, field("model", "on a GPU compute every decode step launch by launch, not as a captured CUDA graph")
    ] = False
    max_model_len: Annotated[
        Annotated[int, Meta(ge=16)] | None, field("model", "context length in tokens; default: the model's")
    ] = None
    seed: Annotated[int, field("model", "seed for requests that bring none", ge=0, le=MAX_SEED)] = 0

    max_num_seqs: Annotated[int, field("scheduling", "sequences running at once", ge=1, le=4096)] = 128
    max_num_batched_tokens: Annotated[int, field("scheduling", "tokens in one step, prefill and decode", ge=16)] = 2048
    max_step_ms: Annotated[
        float,
        field(
            "scheduling",
            "about how long a step with prompts may take while answers are written (pictures beside text take two "
            "thirds of it), twice as long else, four times where few tokens fit; 0: no limit",
            ge=0,
        ),
    ] = 140.0
    overlap_scheduling: Annotated[
        bool | None,
        field(
            "scheduling",
            "plan each step while the ranks still compute the one before it; default: on a GPU, without speculation",
        ),
    ] = None
    jump_forward: Annotated[
        bool,
        field("scheduling", "compute text that an answer's grammar forces in one step, not one token a step"),
    ] = True
    speculative: Annotated[
        Speculative,
        field(
            "scheduling",
            "ngram: propose what followed the same words earlier in prompt or answer, and compute several proposed "
            "tokens in one step; the text stays the same; not with --overlap-scheduling",
        ),
    ] = "none"
    speculative_model: Annotated[
        str | None,
        field(
            "scheduling",
            "directory or hub id of a small text model with the tokens of --model: it proposes tokens where "
            "--speculative finds none, which are computed in one step; the text stays the same; not with "
            "--overlap-scheduling",
        ),
    ] = None
    kv_cache_dtype: Annotated[
        KvDtype,
        field(
            "scheduling",
            "KV cache; auto: as --dtype; a CPU takes bfloat16 or float32 with either of them, a GPU fp8 (e4m3) with "
            "any",
        ),
    ] = "auto"
    kv_cache_gb: Annotated[
        Annotated[float, Meta(gt=0, le=MAX_GB)] | None,
        field("scheduling", "KV cache of each rank, GiB; default: what fits"),
    ] = None
    gpu_memory_utilization: Annotated[
        float,
        field(
            "scheduling",
            "part of a GPU's memory that may be used, by whomever; without --kv-cache-gb the KV cache gets what "
            "weights, pictures, the largest step and CUDA graphs leave of it",
            gt=0,
            le=1,
        ),
    ] = 0.9
    prefault: Annotated[
        bool, field("scheduling", "take the memory of KV cache and arena at start (0.3 s per GiB); off: when used")
    ] = False

    reports_endpoint: Annotated[
        str | None,
        field(
            "kv events",
            "address at which mmserve front learns what this server holds and how loaded it is, e.g. "
            "tcp://127.0.0.1:5560; encrypted, for those with --cluster-key-file",
        ),
    ] = None
    kv_events_endpoint: Annotated[
        str | None,
        field(
            "kv events",
            "address of the events that say what the prefix cache holds (ZeroMQ, vLLM's format), e.g. "
            "tcp://127.0.0.1:5557; every subscriber can read prompts as token ids",
        ),
    ] = None
    kv_events_replay_endpoint: Annotated[
        str | None,
        field("kv events", "where they ask for events that they have missed, e.g. tcp://127.0.0.1:5558"),
    ] = None
    kv_events_topic: Annotated[
        str | None,
        field("kv events", "topic of the events; llm-d wants kv@POD@MODEL; default: empty, as vLLM's"),
    ] = None
    kv_events_format: Annotated[
        EventFormat,
        field("kv events", "map: as vLLM since June 2026; array: as before, for subscribers that read no other"),
    ] = "map"
    embedding_events_endpoint: Annotated[
        str | None,
        field(
            "kv events",
            "address of the events that say which pictures' embeddings are in the arena, e.g. tcp://127.0.0.1:5570; "
            "missed ones are asked for at the next port",
        ),
    ] = None
    kv_events_buffer_mb: Annotated[
        float, field("kv events", "latest events kept to be repeated, MiB", gt=0, le=MAX_MB)
    ] = 16.0

    nnodes: Annotated[
        int, field("nodes", "machines that share the ranks of --tp equally; node 0 has all else", ge=1, le=64)
    ] = 1
    node_rank: Annotated[
        int, field("nodes", "number of this machine among --nnodes; 0, the head, is the one with the HTTP port", ge=0)
    ] = 0
    head: Annotated[
        str | None,
        field(
            "nodes",
            "HOST[:PORT] of node 0, where it listens for the other nodes: an address of a private network, for what "
            "ranks compute travels unencrypted; default port: 8100",
        ),
    ] = None
    cluster_key_file: Annotated[
        str | None,
        field(
            "nodes",
            "secret file shared with nodes, encoders and mmserve front, whose requests may go on with begun "
            "answers; made if it is missing, the other machines need a copy",
        ),
    ] = None
    encoders: Annotated[
        str | None,
        field(
            "nodes",
            "HOST[:PORT] where encoders of other machines join (mmserve encoder), visual server N at PORT + N: an "
            "address of a private network, for pictures travel unencrypted; default port: 8101",
        ),
    ] = None
    join: Annotated[
        str | None, field("nodes", "of mmserve encoder: HOST[:PORT] of the server's --encoders; default port: 8101")
    ] = None
    node_timeout: Annotated[
        float,
        field("nodes", "seconds without a word from another machine after which it counts as lost", gt=0, le=600),
    ] = 5.0
