"""The settings of a checkpoint's image processor, and the user's changes to them (--mm-processor-kwargs).

They are in preprocessor_config.json, or in ``image_processor`` of processor_config.json.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from mmserve.checkpoint.files import read_json
from mmserve.checkpoint.spec import ModelSpec
from mmserve.runtime.errors import StartupError

S = TypeVar("S", bound=msgspec.Struct)


def load_settings(model: ModelSpec, struct: type[S], defaults: Mapping[str, Any] | None = None) -> S:
    """The settings as a ``struct``. ``defaults``: the stored settings of a checkpoint that has none.

    Raises StartupError for a value of the wrong type, and for a change of a setting that ``struct`` does not have.
    """
    checkpoint = Path(model.path)
    known = [field.encode_name for field in msgspec.structs.fields(struct)]
    if unknown := sorted(model.processor_options.keys() - set(known)):
        raise StartupError(
            f"--mm-processor-kwargs: this model's image processor has no setting {unknown[0]!r}; "
            f"it has {', '.join(sorted(known))}"
        )
    try:
        return msgspec.convert(_stored(checkpoint, defaults or {}) | model.processor_options, struct, strict=False)
    except msgspec.ValidationError as error:
        raise StartupError(f"the image processor settings in {checkpoint} cannot be used: {error}") from error


def _stored(checkpoint: Path, defaults: Mapping[str, Any]) -> dict[str, Any]:
    found = read_json(checkpoint / "preprocessor_config.json")
    if found is None:
        found = (read_json(checkpoint / "processor_config.json") or {}).get("image_processor", defaults)
    # transformers writes every field; null means the default.
    return {name: value for name, value in found.items() if value is not None}
