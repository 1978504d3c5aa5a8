"""Every option of ``mmserve serve``: one field = one flag = one environment variable = one config-file key.

The field's type and ``Meta`` are the only place where a default, a range, a help line or a help group is written.
Facts about the model and the machine are in ``deployment.Deployment``.
"""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from mmserve.config.engine_options import EngineOptions
from mmserve.config.fields import MAX_GB, MAX_MB, MAX_SEED, LogFormat, LogLevel, MmHash, field

ENV_PREFIX = "MMSERVE_"


class Config(EngineOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the user asked for: the engine's options and, here, those of everything around it.

    ``None`` means: decided at start from the model and the machine.
    """

    host: Annotated[str, field("http", "address to listen on")] = "127.0.0.1"
    port: Annotated[int, field("http", "port to listen on; 0 picks a free one", ge=0, le=65535)] = 8000
    health_port: Annotated[int, field("http", "port of the health server; 0 picks a free one", ge=0, le=65535)] = 0
    http_workers: Annotated[int, field("http", "HTTP server processes on the one port", ge=1, le=64)] = 1
    tool_call_parser: Annotated[
        str,
        field("http", "format of the model's tool calls: auto (asks the checkpoint), none, or a name"),
    ] = "auto"
    reasoning_parser: Annotated[
        str,
        field(
            "http",
            "format of the model's reasoning: auto (asks the checkpoint), none, or a name",
        ),
    ] = "auto"
    replicas: Annotated[
        int,
        field(
            "http",
            "so many servers behind one address, placed by Ray (pip install 'mmserve[ray]'); 0: one, alone",
            ge=0,
            le=1024,
        ),
    ] = 0
    min_replicas: Annotated[
        Annotated[int, Meta(ge=0, le=1024)] | None,
        field("http", "with --replicas as the most: fewer servers while less is to do; 0: none while nobody asks"),
    ] = None
    ray_address: Annotated[
        str | None,
        field("http", "Ray cluster for --replicas; auto: the one that this machine is in; default: one of its own"),
    ] = None
    api_key: Annotated[str | None, field("http", "key that clients must send (Bearer or x-api-key)")] = None
    api_key_file: Annotated[
        str | None,
        field("http", "file with one 'NAME KEY' or 'NAME KEY api,metrics,admin' a line: a key for each client"),
    ] = None
    caches_by_key: Annotated[
        bool | None,
        field(
            "http",
            "each API key has cached pictures and prompts of its own; default: if several keys may ask for answers",
        ),
    ] = None
    allowed_hosts: Annotated[
        tuple[str, ...],
        field("http", "names in the Host header besides localhost and --host; checked without API keys; *: any"),
    ] = ()
    allowed_origins: Annotated[
        tuple[str, ...],
        field("http", "sites whose pages may use this server (CORS), as https://a.example; *: any"),
    ] = ()
    max_connections: Annotated[int, field("http", "open connections per worker before 503 and a close", ge=1)] = 4096
    keep_alive_timeout: Annotated[
        float, field("http", "seconds a connection may be open without a request", gt=0, le=86400)
    ] = 75.0
    head_timeout: Annotated[
        float, field("http", "seconds from the first to the last byte of a request's head", gt=0, le=86400)
    ] = 30.0
    body_timeout: Annotated[
        float, field("http", "seconds a body may take for each 64 KiB, or for its last ones", gt=0, le=86400)
    ] = 60.0
    unread_timeout: Annotated[
        float,
        field(
            "http",
            "seconds until a connection is closed whose client reads none of its answer's waiting bytes",
            gt=0,
            le=86400,
        ),
    ] = 60.0
    web_ui: Annotated[bool, field("http", "serve the web page at / and its files below /ui/")] = True
    enable_admin: Annotated[
        bool,
        field(
            "http", "serve /admin/alloc, which changes this server while it runs, and /admin/state, which watches it"
        ),
    ] = False
    max_body_mb: Annotated[float, field("http", "largest request body, MiB", gt=0, le=MAX_MB)] = 64.0
    request_timeout: Annotated[
        float, field("http", "seconds from a request's arrival until it is ended with an error; 0: no limit", ge=0)
    ] = 0.0
    max_queued_requests: Annotated[int, field("http", "requests in flight per worker before 429", ge=1)] = 1024
    body_budget_mb: Annotated[
        Annotated[float, Meta(gt=0, le=MAX_MB)] | None,
        field(
            "http",
            "bodies that are not short, and images, in HTTP workers, MiB in all; default: 512, or two bodies each",
        ),
    ] = None
    responses_store_mb: Annotated[
        float,
        field("http", "stored responses (/v1/responses) in the run directory, MiB in all; 0: none", ge=0, le=MAX_MB),
    ] = 256.0
    responses_ttl: Annotated[
        float, field("http", "seconds until a stored response that nobody uses is deleted", gt=0, le=10**9)
    ] = 86400.0
    batch_dir: Annotated[
        str | None,
        field("http", "directory for files and batches (/v1/files, /v1/batches), kept over restarts; default: none"),
    ] = None
    batch_file_mb: Annotated[float, field("http", "largest file for a batch, MiB", gt=0, le=MAX_MB)] = 200.0
    batch_storage_mb: Annotated[
        float, field("http", "files in --batch-dir, MiB in all; more are refused", gt=0, le=MAX_MB)
    ] = 4096.0
    shutdown_timeout: Annotated[float, field("http", "seconds live requests may take after SIGTERM", ge=0)] = 30.0

    mm_cache_gb: Annotated[
        float,
        field("media", "shared-memory arena for images and embeddings, GiB; 0 refuses all images", ge=0, le=MAX_GB),
    ] = 0.5
    arena_huge_pages: Annotated[
        bool, field("media", "put the arena into 2 MiB pages, which the machine must have reserved (vm.nr_hugepages)")
    ] = False
    data_budget_mb: Annotated[
        Annotated[float, Meta(gt=0, le=MAX_MB)] | None,
        field("media", "compressed images of live requests in the arena, MiB; default: half of the arena"),
    ] = None
    embed_budget_mb: Annotated[
        Annotated[float, Meta(gt=0, le=MAX_MB)] | None,
        field("media", "embeddings of live requests in the arena, MiB; default: all of the arena"),
    ] = None
    pixel_budget_mb: Annotated[
        float, field("media", "decoded pixels that wait for the encoder, MiB", gt=0, le=MAX_MB)
    ] = 1024.0
    fetch_budget_mb: Annotated[
        Annotated[float, Meta(gt=0, le=MAX_MB)] | None,
        field("media", "images fetched by HTTP workers, MiB in all; default: 256, or one request's largest each"),
    ] = None
    visual_workers: Annotated[int, field("media", "visual server processes", ge=1, le=16)] = 1
    visual_devices: Annotated[
        tuple[Annotated[int, Meta(ge=0)], ...],
        field("media", "GPUs of the visual servers, which take them in turn; default: those of the ranks, in turn"),
    ] = ()
    visual_share: Annotated[
        float,
        field(
            "media",
            "by what part a vision tower may lengthen the steps of ranks on its GPU; 1: it does not look at them",
            gt=0,
            le=1,
        ),
    ] = 0.3
    visual_batch_size: Annotated[
        Annotated[int, Meta(ge=1, le=1024)] | None,
        field(
            "media",
            "images that are encoded before their requests go on; default: 4 on a CPU, two of them at a time, else 16",
        ),
    ] = None
    enable_concurrent_alloc: Annotated[
        bool, field("media", "read and hash in a thread pool, batched v2 RPC; off: v1")
    ] = True
    concurrent_alloc_fraction: Annotated[
        float, field("media", "share of the requests with images that go down v2, the rest down v1", ge=0, le=1)
    ] = 1.0
    concurrent_alloc_workers: Annotated[
        int, field("media", "threads per HTTP worker that read and hash", ge=1, le=64)
    ] = 4
    mm_hash: Annotated[
        MmHash, field("media", "content key of images; blake3 and sha256 withstand crafted collisions")
    ] = "xxh3"
    mm_hash_seed: Annotated[
        Annotated[int, Meta(ge=0, le=MAX_SEED)] | None,
        field(
            "media",
            "seed of content keys, a secret of servers behind one router; default: of --cluster-key-file or random",
        ),
    ] = None
    max_mm_preprocess_concurrency: Annotated[
        int, field("media", "requests whose images are decoded at once; 0: as many as --pixel-budget-mb lets", ge=0)
    ] = 0
    max_queued_mm_requests: Annotated[
        int, field("media", "requests that wait for their images' turn before 429, per visual server", ge=1)
    ] = 1024
    mm_queue_timeout: Annotated[
        float, field("media", "seconds a request waits for memory or for its images' turn before 503", gt=0, le=600)
    ] = 300.0
    mm_processor_kwargs: Annotated[
        dict[str, Any] | None,
        field("media", "settings of the model's image processor other than the checkpoint's, as a JSON object"),
    ] = None
    limit_mm_per_prompt: Annotated[int, field("media", "images in one prompt", ge=0)] = 16
    max_image_pixels: Annotated[int, field("media", "width x height above which an image is refused", ge=1)] = (
        64_000_000
    )
    media_fetch_timeout: Annotated[float, field("media", "seconds to fetch one image, in all", gt=0, le=600)] = 10.0
    allowed_media_domains: Annotated[
        tuple[str, ...], field("media", "hosts images may be fetched from, comma separated; default: any public host")
    ] = ()
    allowed_local_media_path: Annotated[str | None, field("media", "directory below which file: URLs are allowed")] = (
        None
    )

    stuck_timeout: Annotated[
        float,
        field(
            "supervision",
            "seconds without heartbeat, or without progress on its work, after which a process is killed and started "
            "again; 0: never",
            ge=0,
        ),
    ] = 30.0
    start_timeout: Annotated[
        float,
        field(
            "supervision",
            "seconds without any report (loading weights is one) after which a process that is starting is given up; "
            "at the start this ends the server, later the process is started again; 0: never",
            ge=0,
        ),
    ] = 600.0
    fault_injection: Annotated[
        bool,
        field("supervision", "let a drill (mmserve chaos) put errors into this server's processes; --host: loopback"),
    ] = False

    log_level: Annotated[LogLevel, field("logging", "least severe level logged")] = "info"
    log_format: Annotated[LogFormat, field("logging", "text, or one JSON object a line")] = "text"
    access_log: Annotated[bool, field("logging", "log a line for each HTTP request that was answered")] = False
    trace_requests: Annotated[
        bool, field("logging", "log a line for each generation with the time of each of its stages")
    ] = False
    otlp_traces_endpoint: Annotated[
        str | None,
        field("logging", "URL of an OpenTelemetry receiver (OTLP over HTTP) for a trace of each generation"),
    ] = None
