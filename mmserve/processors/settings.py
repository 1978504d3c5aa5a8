"""The settings of a checkpoint's image processor, and changes to them: of the server's user, and of requests.

They are in preprocessor_config.json, or in ``image_processor`` of processor_config.json. ModelSpec has the changes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

import msgspec
from msgspec.structs import replace

from mmserve.checkpoint.files import read_json
from mmserve.checkpoint.spec import ModelSpec
from mmserve.runtime.errors import StartupError

S = TypeVar("S", bound=msgspec.Struct)
_WITHOUT_EFFECT = frozenset(
    {
        "processor_class",
        "feature_extractor_type",
        "image_processor_type",
        "auto_map",
        "do_convert_rgb",
        "default_to_square",
        "data_format",
        "input_data_format",
        "return_tensors",
        "device",
        "disable_grouping",
        "model_input_names",
        "_valid_processor_keys",
    }
)
"""Stored settings that change no value of an RGB picture, to which every picture is converted."""

_OF_THE_WEIGHTS = frozenset(
    {
        "do_resize",
        "do_rescale",
        "do_normalize",
        "rescale_factor",
        "image_mean",
        "image_std",
        "resample",
        "patch_size",
        "temporal_patch_size",
        "merge_size",
        "image_processor_type",
    }
)
"""The weights were trained with these settings."""
_OLDER_THAN_SIZE = ("min_pixels", "max_pixels")


class SettingsRefused(StartupError):
    """``reason``: the same without the checkpoint's path."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


def with_options(model: ModelSpec, options: Mapping[str, Any]) -> ModelSpec:
    """``model`` with these settings of its image processor changed, besides those that are changed already."""
    return replace(model, processor_options=_changed(model.processor_options, options))


def changeable(struct: type[msgspec.Struct]) -> frozenset[str]:
    """The settings that a request may change: those of sizes and numbers of parts."""
    return frozenset(_names(struct) - _OF_THE_WEIGHTS)


def load_settings(
    model: ModelSpec, struct: type[S], defaults: Mapping[str, Any] | None = None, *, unused: Collection[str] = ()
) -> S:
    """The settings as a ``struct``. ``defaults``: the stored settings of a checkpoint that has none.

    ``unused``: stored settings of this family that have no effect. A struct with ``forbid_unknown_fields`` refuses all
    others that it does not have.
    Raises StartupError for a value of the wrong type, and for a change of a setting that ``struct`` does not have.
    """
    known = _names(struct)
    without_effect = (_WITHOUT_EFFECT - known).union(unused)
    # transformers writes every field; null means the default. A step that is switched off may have any name.
    stored = {
        name: value
        for name, value in _stored(Path(model.path), defaults).items()
        if value is not None and name not in without_effect and (value is not False or name in known)
    }
    return changed_settings(model, struct, stored)


def changed_settings(model: ModelSpec, struct: type[S], stored: Mapping[str, Any]) -> S:
    """``stored`` with the user's changes, as a ``struct``. Raises StartupError like ``load_settings``."""
    known = _names(struct)
    if unknown := sorted(model.processor_options.keys() - known):
        raise StartupError(
            f"--mm-processor-kwargs: this model's image processor has no setting {unknown[0]!r}; "
            f"it has {', '.join(sorted(known))}"
        )
    try:
        return msgspec.convert(_changed(stored, model.processor_options), struct, strict=False)
    except msgspec.ValidationError as error:
        message = f"the image processor settings in {model.path} cannot be used: {error}"
        raise SettingsRefused(message, str(error)) from error


def _changed(settings: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """``size`` also takes the place of the same limits under their older names, which would win over it."""
    replaced = _OLDER_THAN_SIZE if "size" in options else ()
    return {name: value for name, value in settings.items() if name not in replaced} | dict(options)


def _names(struct: type[msgspec.Struct]) -> set[str]:
    return {field.encode_name for field in msgspec.structs.fields(struct)}


def _stored(checkpoint: Path, defaults: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Those of processor_config.json come first, as in transformers."""
    found = (read_json(checkpoint / "processor_config.json") or {}).get("image_processor")
    if found is None:
        found = read_json(checkpoint / "preprocessor_config.json")
    if found is None:
        found = defaults
    if found is None:
        raise StartupError(f"{checkpoint} lacks preprocessor_config.json, which says how pictures are processed")
    return cast("Mapping[str, Any]", found)
