"""``mmserve models``: the architectures that are served, or what one checkpoint is and what it needs."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from mmserve.cli.tables import aligned, size
from mmserve.config.options import OPTIONS
from mmserve.runtime.errors import StartupError

if TYPE_CHECKING:
    from mmserve.cli.plan.model_report import Bytes, ModelReport, PictureReport

_OTHERS = (
    "Other text models are computed by transformers' modules where these fit: pip install 'mmserve[transformers]'. "
    "docs/models.md says more."
)


def add_models(commands: Any) -> None:
    """Add the command and its flags."""
    parser = commands.add_parser(
        "models",
        help="list the models that are served, or say what a checkpoint needs",
        description="List the architectures that are served. With a model: what it is, what memory it needs, or why "
        "it cannot be served.",
    )
    parser.add_argument("model", nargs="?", help="packaged name, checkpoint directory, or hub id that is on this disk")
    parser.add_argument(
        "--model-impl", choices=OPTIONS["model_impl"].choices, default="auto", help="as in mmserve serve"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def models(arguments: argparse.Namespace) -> int:
    """Run the command; 1 if the model cannot be served."""
    if arguments.model is None:
        print(_listing(as_json=arguments.json))
        return 0
    return _report(arguments.model, arguments)


def _listing(*, as_json: bool) -> str:
    # Imported here, as below: these would slow down --help.
    from mmserve.checkpoint.catalogue import entries

    found = entries()
    if as_json:
        return json.dumps([entry._asdict() for entry in found])
    rows = [("architecture", "models", "what it adds to Llama"), *found]
    return "\n".join([*aligned(rows), "", _OTHERS])


def _report(name: str, arguments: argparse.Namespace) -> int:
    import msgspec

    from mmserve.checkpoint.locate import locate
    from mmserve.cli.plan.model_report import report
    from mmserve.supervisor.startup.tensor_check import check_tensors

    try:
        found = report(locate(name, download=False), arguments.model_impl)
        if found.computed_by == "mmserve" and found.quantization is None:
            check_tensors(found.path)
    except StartupError as error:
        print(json.dumps({"model": name, "problem": str(error)}) if arguments.json else f"{name}: {error}")
        return 1
    print(json.dumps({"model": name, **msgspec.to_builtins(found)}) if arguments.json else render(name, found))
    return 0


def render(name: str, found: ModelReport) -> str:
    """The report as text for a terminal."""
    own = "mmserve's own code" if found.computed_by == "mmserve" else "transformers' modules, slower (docs/models.md)"
    weights = _sizes(found.weights_bytes)
    rows = [
        ("model", f"{name}: {found.architecture}, computed by {own}"),
        ("context", f"{found.context} tokens; {found.layers} layers of {found.kv_heads} KV heads of {found.head_dim}"),
        ("weights", weights)
        if found.quantization is None
        else ("weights", f"{size(found.weights_bytes.float32)}: {found.quantization}; all else in float32"),
        *_picture_rows(found.pictures),
        ("KV cache", f"a token {_sizes(found.kv_bytes_per_token)}"),
        ("", f"a whole context {_sizes(found.kv_bytes_of_context)}"),
        ("arena", f"{size(found.arena_bytes)}{_fitting(found.pictures)}"),
        ("together", f"{_sizes(found.total_bytes)}, with the KV cache of one context"),
    ]
    return "\n".join(aligned(rows))


def _picture_rows(pictures: PictureReport | None) -> list[tuple[str, str]]:
    if pictures is None:
        return [("pictures", "none")]
    tower = pictures.tower_weights_bytes
    on_cpu = "" if tower is None else "; on a CPU always in float32"
    of_tower = [] if tower is None else [("", f"of these the vision tower {_sizes(tower)}")]
    return [
        *of_tower,
        ("pictures", f"at most {pictures.rows} tokens each"),
        ("", f"the largest {_sizes(pictures.embedding_bytes)}{on_cpu}"),
    ]


def _fitting(pictures: PictureReport | None) -> str:
    if pictures is None:
        return ""
    if not pictures.fit_into_arena:
        return ", too little for the largest picture: raise --mm-cache-gb, or pictures are made smaller"
    return f" (--mm-cache-gb): room for {pictures.fit_into_arena} of the largest pictures in float32"


def _sizes(nbytes: Bytes) -> str:
    return f"{size(nbytes.bfloat16)} in bfloat16, {size(nbytes.float32)} in float32"
