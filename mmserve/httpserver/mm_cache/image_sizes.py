"""What an image takes, by the size in its header: tokens of the prompt, bytes in the arena, memory to decode it."""

from __future__ import annotations

from collections.abc import Sequence

from mmserve.config.deployment import Deployment
from mmserve.httpserver.call import MediaItem
from mmserve.messages.cache import AllocItem
from mmserve.processors.interface import ImageProcessor
from mmserve.processors.registry import processor_for
from mmserve.runtime.errors import MmserveError


class ImageSizes:
    """For the images of one model; of a text model there are none to ask about."""

    def __init__(self, deployment: Deployment) -> None:
        self._row_nbytes = deployment.embed_row_nbytes
        self._of_model = processor_for(deployment.model)

    def num_tokens(self, items: Sequence[MediaItem]) -> list[int]:
        """Tokens of each image in a prompt. Raises MediaError."""
        return [self._num_tokens(item, index, len(items)) for index, item in enumerate(items)]

    def alloc_items(self, items: Sequence[MediaItem]) -> list[AllocItem]:
        """What the cache server has to find room for. Raises MediaError."""
        return [
            item.stored or AllocItem(item.key, count, len(item.data), count * self._row_nbytes)
            for item, count in zip(items, self.num_tokens(items), strict=True)
        ]

    def decoded_nbytes(self, items: Sequence[MediaItem]) -> list[int]:
        """Estimated memory for decoding each image."""
        return [self._processor.decoded_nbytes(item.width, item.height, item.loading_nbytes) for item in items]

    def _num_tokens(self, item: MediaItem, index: int, count: int) -> int:
        try:
            return self._processor.expand(item.width, item.height, index=index, count=count).num_rows
        except MmserveError as error:
            error.param = item.param
            raise

    @property
    def _processor(self) -> ImageProcessor:
        assert self._of_model is not None, "a text model's request holds no images"
        return self._of_model
