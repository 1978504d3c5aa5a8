"""What an image takes, by the size in its header: its rows in the prompt, bytes in the arena, memory to decode it."""

from __future__ import annotations

from collections.abc import Sequence

from mmserve.config.resolved.deployment import Deployment
from mmserve.httpserver.call import MediaItem
from mmserve.messages.cache import AllocItem
from mmserve.messages.media import Processing
from mmserve.processors.image_processors import image_processors_for
from mmserve.processors.interface import Expansion, ImageProcessor
from mmserve.runtime.errors import MmserveError


class ImageSizes:
    """For the images of one model; of a text model there are none to ask about."""

    def __init__(self, deployment: Deployment) -> None:
        self._row_nbytes = deployment.embed_row_nbytes
        self._processors = image_processors_for(deployment.model)
        self._whole = deployment.device == "cuda"
        """Pictures may go to the tower's device whole."""

    def expansions(self, items: Sequence[MediaItem]) -> list[Expansion]:
        """What each image becomes in a prompt. Raises MediaError."""
        return [self._expansion(item) for item in items]

    def settings_digest(self, processing: Processing) -> bytes:
        """Differs if the same image would become something else."""
        return self._processor(processing).settings_digest()

    def alloc_items(self, items: Sequence[MediaItem], expansions: Sequence[Expansion]) -> list[AllocItem]:
        """What the cache server has to find room for."""
        return [
            item.stored or self._alloc_item(item, expansion.num_rows)
            for item, expansion in zip(items, expansions, strict=True)
        ]

    def decoded_nbytes(self, items: Sequence[MediaItem]) -> list[int]:
        """Estimated memory for decoding each image."""
        return [
            self._processor(item.processing).decoded_nbytes(
                item.width, item.height, item.loading_nbytes, whole=self._whole
            )
            for item in items
        ]

    def _alloc_item(self, item: MediaItem, num_rows: int) -> AllocItem:
        return AllocItem(item.key, num_rows, len(item.data), num_rows * self._row_nbytes)

    def _expansion(self, item: MediaItem) -> Expansion:
        if item.counted is not None:
            return item.counted
        try:
            return self._processor(item.processing).expand(item.width, item.height)
        except MmserveError as error:
            error.param = item.param
            raise

    def _processor(self, processing: Processing) -> ImageProcessor:
        assert self._processors is not None, "a text model's request holds no images"
        return self._processors.of(processing)
