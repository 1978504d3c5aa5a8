"""What the permits of images count."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from mmserve.httpserver.call import MediaItem
from mmserve.httpserver.mm_cache.image_sizes import ImageSizes
from tests.fakes.http.http_services import make_deployment


def test_on_a_gpu_permits_count_pictures_that_stay_whole(tmp_path: Path) -> None:
    here = make_deployment(str(tmp_path))
    there = replace(here, device="cuda")
    side = 1600
    item = MediaItem(data=b"x", width=side, height=side, key=b"k", param="p", loading_nbytes=4 * side**2)
    (on_cpu,), (on_gpu,) = (ImageSizes(each).decoded_nbytes([item]) for each in (here, there))
    assert on_cpu < 7 * side**2 <= on_gpu
    large = replace(item, width=4 * side, height=4 * side)
    assert ImageSizes(here).decoded_nbytes([large]) == ImageSizes(there).decoded_nbytes([large]), "Pillow resizes it"
