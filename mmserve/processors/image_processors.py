"""The image processors of one model: requests may change settings, and some families look at the number of pictures."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import msgspec

from mmserve.checkpoint.spec import ModelSpec
from mmserve.messages.media import Processing
from mmserve.processors.interface import ImageProcessor
from mmserve.processors.registry import processor_for
from mmserve.processors.settings import SettingsRefused, with_options
from mmserve.runtime.errors import InvalidRequest, StartupError, quoted, shortened

MAX_OPTIONS_NBYTES = 4096
"""As JSON."""
_MAX_KEPT = 64
"""Processors, by the settings that requests change. Each takes a few KB."""


class ImageProcessors:
    """Thread-safe. ``server``: with the server's settings."""

    def __init__(self, model: ModelSpec, server: ImageProcessor) -> None:
        self.server = server
        self._model = model
        self._with_options = functools.lru_cache(_MAX_KEPT)(self._made)

    def of(self, processing: Processing) -> ImageProcessor:
        """The processor of a request's pictures. ``processing.options`` are those that ``checked`` has returned."""
        processor = self._with_options(processing.options) if processing.options else self.server
        return processor.among(processing.num_images)

    def checked(self, options: Mapping[str, Any], param: str) -> str:
        """``Processing.options`` of a request's ``options``, which may change these settings and take no more rows.

        Raises InvalidRequest, naming ``param`` or a part of it.
        """
        given = {name: value for name, value in options.items() if value is not None}
        for name in given:
            if name not in self.server.request_options:
                raise _unknown(name, self.server.request_options, param)
        if not given:
            return ""
        encoded = msgspec.json.encode(given, order="deterministic")
        if len(encoded) > MAX_OPTIONS_NBYTES:
            raise InvalidRequest(f"these settings have more than {MAX_OPTIONS_NBYTES} bytes", param=param)
        where = f"{param}.{next(iter(given))}" if len(given) == 1 else param
        try:
            rows = self._with_options(encoded.decode()).max_rows
        except SettingsRefused as error:
            raise InvalidRequest(f"the image processor cannot use this: {error.reason}", param=where) from None
        except (StartupError, ArithmeticError):
            raise InvalidRequest("the image processor cannot use this", param=where) from None
        if rows > self.server.max_rows:
            raise InvalidRequest(
                f"an image could take {rows} tokens with this; the server's own settings allow {self.server.max_rows}",
                param=where,
            )
        return encoded.decode()

    def _made(self, options: str) -> ImageProcessor:
        """Raises StartupError."""
        processor = processor_for(with_options(self._model, msgspec.json.decode(options)))
        assert processor is not None, "a text model has no options"
        return processor


def image_processors_for(model: ModelSpec) -> ImageProcessors | None:
    """None for a text model. Raises StartupError."""
    server = processor_for(model)
    return None if server is None else ImageProcessors(model, server)


def _unknown(name: str, known: frozenset[str], param: str) -> InvalidRequest:
    has = f"a request may change {', '.join(sorted(known))}" if known else "a request can change none"
    return InvalidRequest(
        f"this model's image processor has no setting {quoted(name)} for requests; {has}",
        param=f"{param}.{shortened(name, 40)}",
    )
