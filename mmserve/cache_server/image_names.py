"""Names that clients have given to images. Pure: whether an image is still stored is the table's knowledge."""

from __future__ import annotations

from collections import OrderedDict

from mmserve.messages.cache import NamedImage

MAX_NAMES = 16_384
"""About 0.5 KB each. The name that was used least recently goes first."""


class ImageNames:
    """Name -> image. A name is a hash of what the client wrote and of whose it is, so it can be guessed by nobody."""

    def __init__(self, max_names: int = MAX_NAMES) -> None:
        self._max_names = max_names
        self._images: OrderedDict[bytes, NamedImage] = OrderedDict()

    def __len__(self) -> int:
        return len(self._images)

    def set(self, name: bytes, image: NamedImage) -> None:
        """The name stands for this image now, whatever it stood for before."""
        self._images[name] = image
        self._images.move_to_end(name)
        if len(self._images) > self._max_names:
            self._images.popitem(last=False)

    def get(self, name: bytes) -> NamedImage | None:
        if (image := self._images.get(name)) is not None:
            self._images.move_to_end(name)
        return image
