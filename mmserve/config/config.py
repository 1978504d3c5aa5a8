"""Every option of ``mmserve serve``: one field = one flag = one environment variable = one config-file key.

The field's type and ``Meta`` are the only place where a default, a range, a help line or a help group is written.
Facts about the model and the machine are in ``deployment.Deployment``.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

Device = Literal["auto", "cpu", "cuda"]
Dtype = Literal["auto", "bfloat16", "float16", "float32"]
KvDtype = Literal["auto", "bfloat16", "float16", "float32", "fp8"]
Quantization = Literal["none", "int8", "int4"]
ModelImpl = Literal["auto", "mmserve", "transformers"]
LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["text", "json"]
AttentionChoice = Literal["auto", "torch", "triton"]
KernelWays = Literal["auto", "kept", "default"]
KernelLevel = Literal["auto", "amx", "avx512_bf16", "avx512", "avx2", "neon_bf16", "neon"]
Speculative = Literal["none", "ngram"]
MmHash = Literal["xxh3", "blake3", "sha256"]
EventFormat = Literal["map", "array"]
MAX_SEED = 2**63 - 1
_MAX_GB = 10**6
_MAX_MB = 10**9
"""Larger values are typing errors, and would overflow the integers of messages."""


def _field(group: str, help: str, *, ge: float | None = None, gt: float | None = None, le: float | None = None) -> Meta:
    limits = {name: value for name, value in (("ge", ge), ("gt", gt), ("le", le)) if value is not None}
    return Meta(description=help, extra={"group": group}, **limits)  # type: ignore[call-overload, no-any-return]


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the user asked for. ``None`` means: decided at start from the model and the machine."""

    model: Annotated[str, _field("model", "packaged name (llava), checkpoint directory, or Hugging Face hub id")] = (
        "llava"
    )
    served_model_name: Annotated[
        tuple[str, ...],
        _field("model", "names clients use, comma separated; the first is in answers; default: --model's base name"),
    ] = ()
    device: Annotated[Device, _field("model", "where ranks and vision tower run")] = "auto"
    dtype: Annotated[
        Dtype, _field("model", "weights and products; on a GPU all else too; auto: bfloat16 where it is fast")
    ] = "auto"
    quantization: Annotated[
        Quantization,
        _field("model", "language model's weights in 8 or 4 bits, 32 to a scale, on a CPU; the rest in float32"),
    ] = "none"
    model_impl: Annotated[
        ModelImpl,
        _field("model", "code that computes the model; auto: mmserve's own where there is some, else transformers'"),
    ] = "auto"
    tp: Annotated[int, _field("model", "tensor-parallel ranks, one process each", ge=1, le=64)] = 1
    cpu_threads: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        _field(
            "model", "threads that all ranks together compute with on a CPU; default: the physical cores it may use"
        ),
    ] = None
    kernel_level: Annotated[
        KernelLevel,
        _field(
            "model",
            "fastest instruction set that a CPU computes with; auto: the best it has; with all but amx and "
            "avx512_bf16, --dtype auto is float32; all give the same numbers, but amx other ones in bfloat16",
        ),
    ] = "auto"
    kernel_ways: Annotated[
        KernelWays,
        _field(
            "model",
            "how a CPU divides products; the numbers are the same; auto: as measured at a model's first start on this "
            "CPU; kept: never measure, use earlier results; default: use none",
        ),
    ] = "auto"
    attention_backend: Annotated[
        AttentionChoice,
        _field("model", "attention on a GPU; auto: Triton's kernels where they pass a test at start, else torch's"),
    ] = "auto"
    max_model_len: Annotated[
        Annotated[int, Meta(ge=16)] | None, _field("model", "context length in tokens; default: the model's")
    ] = None
    seed: Annotated[int, _field("model", "seed for requests that bring none", ge=0, le=MAX_SEED)] = 0

    host: Annotated[str, _field("http", "address to listen on")] = "127.0.0.1"
    port: Annotated[int, _field("http", "port to listen on; 0 picks a free one", ge=0, le=65535)] = 8000
    health_port: Annotated[int, _field("http", "port of the health server; 0 picks a free one", ge=0, le=65535)] = 0
    http_workers: Annotated[int, _field("http", "HTTP server processes on the one port", ge=1, le=64)] = 1
    tool_call_parser: Annotated[
        str,
        _field("http", "format of the model's tool calls: auto (asks the checkpoint), none, or a name"),
    ] = "auto"
    reasoning_parser: Annotated[
        str,
        _field(
            "http",
            "format of the model's reasoning: auto (asks the checkpoint), none, or a name",
        ),
    ] = "auto"
    api_key: Annotated[str | None, _field("http", "key that clients must send (Bearer or x-api-key)")] = None
    api_key_file: Annotated[
        str | None,
        _field("http", "file with one 'NAME KEY' or 'NAME KEY api,metrics,admin' a line: a key for each client"),
    ] = None
    allowed_hosts: Annotated[
        tuple[str, ...],
        _field("http", "names in the Host header besides localhost and --host; checked without API keys; *: any"),
    ] = ()
    allowed_origins: Annotated[
        tuple[str, ...],
        _field("http", "sites whose pages may use this server (CORS), as https://a.example; *: any"),
    ] = ()
    max_connections: Annotated[int, _field("http", "open connections per worker before 503 and a close", ge=1)] = 4096
    keep_alive_timeout: Annotated[
        float, _field("http", "seconds a connection may be open without a request", gt=0, le=86400)
    ] = 75.0
    head_timeout: Annotated[
        float, _field("http", "seconds from the first to the last byte of a request's head", gt=0, le=86400)
    ] = 30.0
    body_timeout: Annotated[
        float, _field("http", "seconds a body may take for each 64 KiB, or for its last ones", gt=0, le=86400)
    ] = 60.0
    unread_timeout: Annotated[
        float,
        _field(
            "http",
            "seconds until a connection is closed whose client reads none of its answer's waiting bytes",
            gt=0,
            le=86400,
        ),
    ] = 60.0
    web_ui: Annotated[bool, _field("http", "serve the web page at / and its files below /ui/")] = True
    enable_admin: Annotated[
        bool,
        _field(
            "http", "serve /admin/alloc, which changes this server while it runs, and /admin/state, which watches it"
        ),
    ] = False
    max_body_mb: Annotated[float, _field("http", "largest request body, MiB", gt=0, le=_MAX_MB)] = 64.0
    request_timeout: Annotated[
        float, _field("http", "seconds from a request's arrival until it is ended with an error; 0: no limit", ge=0)
    ] = 0.0
    max_queued_requests: Annotated[int, _field("http", "requests in flight per worker before 429", ge=1)] = 1024
    body_budget_mb: Annotated[
        Annotated[float, Meta(gt=0, le=_MAX_MB)] | None,
        _field(
            "http",
            "bodies that are not short, and images, in HTTP workers, MiB in all; default: 512, or two bodies each",
        ),
    ] = None
    responses_store_mb: Annotated[
        float,
        _field("http", "stored responses (/v1/responses) in the run directory, MiB in all; 0: none", ge=0, le=_MAX_MB),
    ] = 256.0
    responses_ttl: Annotated[
        float, _field("http", "seconds until a stored response that nobody uses is deleted", gt=0, le=10**9)
    ] = 86400.0
    batch_dir: Annotated[
        str | None,
        _field("http", "directory for files and batches (/v1/files, /v1/batches), kept over restarts; default: none"),
    ] = None
    batch_file_mb: Annotated[float, _field("http", "largest file for a batch, MiB", gt=0, le=_MAX_MB)] = 200.0
    batch_storage_mb: Annotated[
        float, _field("http", "files in --batch-dir, MiB in all; more are refused", gt=0, le=_MAX_MB)
    ] = 4096.0
    shutdown_timeout: Annotated[float, _field("http", "seconds live requests may take after SIGTERM", ge=0)] = 30.0

    max_num_seqs: Annotated[int, _field("scheduling", "sequences running at once", ge=1, le=4096)] = 128
    max_num_batched_tokens: Annotated[int, _field("scheduling", "tokens in one step, prefill and decode", ge=16)] = 2048
    max_step_ms: Annotated[
        float,
        _field(
            "scheduling",
            "about how long a step with prompts may take while answers are written (pictures beside text take two "
            "thirds of it), twice as long else; 0: no limit",
            ge=0,
        ),
    ] = 140.0
    overlap_scheduling: Annotated[
        bool, _field("scheduling", "plan each step while the ranks still compute the one before it")
    ] = False
    jump_forward: Annotated[
        bool,
        _field("scheduling", "compute text that an answer's grammar forces in one step, not one token a step"),
    ] = True
    speculative: Annotated[
        Speculative,
        _field(
            "scheduling",
            "ngram: propose what followed the same words earlier in prompt or answer, and compute several proposed "
            "tokens in one step; the text stays the same; not with --overlap-scheduling",
        ),
    ] = "none"
    speculative_model: Annotated[
        str | None,
        _field(
            "scheduling",
            "directory or hub id of a small text model with the tokens of --model: it proposes tokens where "
            "--speculative finds none, which are computed in one step; the text stays the same; not with "
            "--overlap-scheduling",
        ),
    ] = None
    kv_cache_dtype: Annotated[
        KvDtype,
        _field(
            "scheduling",
            "KV cache; auto: as --dtype; a CPU takes bfloat16 or float32 with either of them, a GPU fp8 (e4m3) with "
            "any",
        ),
    ] = "auto"
    kv_cache_gb: Annotated[
        Annotated[float, Meta(gt=0, le=_MAX_GB)] | None,
        _field("scheduling", "KV cache of each rank, GiB; default: what fits"),
    ] = None
    prefault: Annotated[
        bool, _field("scheduling", "take the memory of KV cache and arena at start (0.3 s per GiB); off: when used")
    ] = False

    mm_cache_gb: Annotated[
        float,
        _field("media", "shared-memory arena for images and embeddings, GiB; 0 refuses all images", ge=0, le=_MAX_GB),
    ] = 0.5
    arena_huge_pages: Annotated[
        bool, _field("media", "put the arena into 2 MiB pages, which the machine must have reserved (vm.nr_hugepages)")
    ] = False
    data_budget_mb: Annotated[
        Annotated[float, Meta(gt=0, le=_MAX_MB)] | None,
        _field("media", "compressed images of live requests in the arena, MiB; default: half of the arena"),
    ] = None
    embed_budget_mb: Annotated[
        Annotated[float, Meta(gt=0, le=_MAX_MB)] | None,
        _field("media", "embeddings of live requests in the arena, MiB; default: all of the arena"),
    ] = None
    pixel_budget_mb: Annotated[
        float, _field("media", "decoded pixels that wait for the encoder, MiB", gt=0, le=_MAX_MB)
    ] = 1024.0
    fetch_budget_mb: Annotated[
        Annotated[float, Meta(gt=0, le=_MAX_MB)] | None,
        _field("media", "images fetched by HTTP workers, MiB in all; default: 256, or one request's largest each"),
    ] = None
    visual_workers: Annotated[int, _field("media", "visual server processes", ge=1, le=16)] = 1
    visual_batch_size: Annotated[
        Annotated[int, Meta(ge=1, le=1024)] | None,
        _field(
            "media",
            "images that are encoded before their requests go on; default: 4 on a CPU, two of them at a time, else 16",
        ),
    ] = None
    enable_concurrent_alloc: Annotated[
        bool, _field("media", "read and hash in a thread pool, batched v2 RPC; off: v1")
    ] = True
    concurrent_alloc_fraction: Annotated[
        float, _field("media", "share of the requests with images that go down v2, the rest down v1", ge=0, le=1)
    ] = 1.0
    concurrent_alloc_workers: Annotated[
        int, _field("media", "threads per HTTP worker that read and hash", ge=1, le=64)
    ] = 4
    mm_hash: Annotated[
        MmHash, _field("media", "content key of images; blake3 and sha256 withstand crafted collisions")
    ] = "xxh3"
    mm_hash_seed: Annotated[
        Annotated[int, Meta(ge=0, le=MAX_SEED)] | None,
        _field("media", "seed of content keys: a secret that servers behind one router share; default: random"),
    ] = None
    max_mm_preprocess_concurrency: Annotated[
        int, _field("media", "requests whose images are decoded at once; 0: as many as --pixel-budget-mb lets", ge=0)
    ] = 0
    max_queued_mm_requests: Annotated[
        int, _field("media", "requests that wait for their images' turn before 429, per visual server", ge=1)
    ] = 1024
    mm_queue_timeout: Annotated[
        float, _field("media", "seconds a request waits for memory or for its images' turn before 503", gt=0, le=600)
    ] = 300.0
    mm_processor_kwargs: Annotated[
        dict[str, Any] | None,
        _field("media", "settings of the model's image processor other than the checkpoint's, as a JSON object"),
    ] = None
    limit_mm_per_prompt: Annotated[int, _field("media", "images in one prompt", ge=0)] = 16
    max_image_pixels: Annotated[int, _field("media", "width x height above which an image is refused", ge=1)] = (
        64_000_000
    )
    media_fetch_timeout: Annotated[float, _field("media", "seconds to fetch one image, in all", gt=0, le=600)] = 10.0
    allowed_media_domains: Annotated[
        tuple[str, ...], _field("media", "hosts images may be fetched from, comma separated; default: any public host")
    ] = ()
    allowed_local_media_path: Annotated[str | None, _field("media", "directory below which file: URLs are allowed")] = (
        None
    )

    kv_events_endpoint: Annotated[
        str | None,
        _field(
            "kv events",
            "address of the events that say what the prefix cache holds (ZeroMQ, vLLM's format), e.g. "
            "tcp://127.0.0.1:5557; every subscriber can read prompts as token ids",
        ),
    ] = None
    kv_events_replay_endpoint: Annotated[
        str | None,
        _field("kv events", "where they ask for events that they have missed, e.g. tcp://127.0.0.1:5558"),
    ] = None
    kv_events_topic: Annotated[
        str | None,
        _field("kv events", "topic of the events; llm-d wants kv@POD@MODEL; default: empty, as vLLM's"),
    ] = None
    kv_events_format: Annotated[
        EventFormat,
        _field("kv events", "map: as vLLM since June 2026; array: as before, for subscribers that read no other"),
    ] = "map"
    kv_events_buffer_mb: Annotated[
        float, _field("kv events", "latest events kept to be repeated, MiB", gt=0, le=_MAX_MB)
    ] = 16.0

    stuck_timeout: Annotated[
        float,
        _field(
            "supervision",
            "seconds without heartbeat, or without progress on its work, after which a process is killed and started "
            "again; 0: never",
            ge=0,
        ),
    ] = 30.0

    start_timeout: Annotated[
        float,
        _field(
            "supervision",
            "seconds without any report (loading weights is one) after which a process that is starting is given up; "
            "at the start this ends the server, later the process is started again; 0: never",
            ge=0,
        ),
    ] = 600.0

    fault_injection: Annotated[
        bool,
        _field("supervision", "let a drill (mmserve chaos) put errors into this server's processes; --host: loopback"),
    ] = False

    log_level: Annotated[LogLevel, _field("logging", "least severe level logged")] = "info"
    log_format: Annotated[LogFormat, _field("logging", "text, or one JSON object a line")] = "text"
    access_log: Annotated[bool, _field("logging", "log a line for each HTTP request that was answered")] = False
    trace_requests: Annotated[
        bool, _field("logging", "log a line for each generation with the time of each of its stages")
    ] = False
    otlp_traces_endpoint: Annotated[
        str | None,
        _field("logging", "URL of an OpenTelemetry receiver (OTLP over HTTP) for a trace of each generation"),
    ] = None


ENV_PREFIX = "MMSERVE_"
