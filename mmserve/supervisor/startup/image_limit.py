"""Makes images smaller where the checkpoint's largest image would not fit into the context or the arena."""

from __future__ import annotations

import logging

import msgspec
from msgspec.structs import replace

from mmserve.checkpoint.spec import ModelSpec
from mmserve.checkpoint.vision.generic import GenericVision
from mmserve.config.config import Config
from mmserve.processors.registry import processor_for
from mmserve.processors.settings import with_options
from mmserve.supervisor.startup import plan
from mmserve.supervisor.startup.machine import Machine

_SHARE = 2
"""Then one image takes at most this part (half) of the context and of the arena: a text, an answer and another image
need room, too."""
logger = logging.getLogger(__name__)


def limit_images(config: Config, model: ModelSpec, machine: Machine) -> tuple[ModelSpec, int]:
    """The model and the rows of its largest image; 0 for a text model. Raises StartupError.

    An image that does not fit stays as large where the user has chosen the settings (``--mm-processor-kwargs``), or the
    family cannot make it smaller. ``plan.make`` then refuses it. Of a model that transformers' modules compute, larger
    images are refused when they come.
    """
    processor = processor_for(model)
    if processor is None:
        return model, 0
    most = plan.most_image_rows(config, model, machine)
    if processor.max_rows <= most or config.mm_processor_kwargs is not None or not most:
        return model, processor.max_rows
    if isinstance(model.vision, GenericVision) and not model.vision.rows:
        logger.warning(
            "an image may take %d tokens, for which the context or the arena has no room: images with more than %d are "
            "refused; raise --max-model-len and --mm-cache-gb to take them",
            processor.max_rows,
            most,
        )
        return replace(model, vision=replace(model.vision, max_rows=most)), most
    options = processor.within(max(1, most // _SHARE))
    limited = None if options is None else with_options(model, options)
    smaller = None if limited is None else processor_for(limited)
    if limited is None or smaller is None or smaller.max_rows > most:
        return model, processor.max_rows
    logger.warning(
        "an image of the checkpoint's size may take %d tokens, for which the context or the arena has no room: images "
        "are made smaller, to at most %d tokens, as with --mm-processor-kwargs '%s'; raise --max-model-len and "
        "--mm-cache-gb to have them whole",
        processor.max_rows,
        smaller.max_rows,
        msgspec.json.encode(options).decode(),
    )
    return limited, smaller.max_rows
