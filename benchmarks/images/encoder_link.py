"""What it costs to have a picture encoded on another machine, besides the encoding: bytes out, rows into the arena.

    python -m benchmarks.images.encoder_link --pictures 50

The link is the real one, over loopback. Both ends run in this process: an encoder that answers with rows that it has
already, and a visual server's end that receives them into an arena. Beside it, the time that the vision tower of
LLaVA 1.5 takes for one picture here (CLIP ViT-L/14 at 336 pixels, random weights, transformers, float32).
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import time
from contextlib import closing, suppress

import torch
import transformers

from mmserve.config.node_options import Address
from mmserve.ipc.arena import Arena, extent_nbytes
from mmserve.messages.media import Handle
from mmserve.visualserver.encoder.dialer import Dialer, Job
from mmserve.visualserver.images import Image
from mmserve.visualserver.remote.encoder_link import EncoderLink
from mmserve.visualserver.remote.encoders import Encoders, listening_socket
from mmserve.visualserver.remote.frames import Hello, Result, digest

ROWS = {"LLaVA 1.5 (576 x 4096, bfloat16)": 576 * 4096 * 2, "packaged model (64 x 256, float32)": 64 * 256 * 4}
PICTURE_NBYTES = 200 << 10
AT_ONCE = (1, 4)
_SECRET = secrets.token_bytes(32)
_TIMEOUT_S = 10.0


def write(arena: Arena, offset: int, nbytes: int) -> Handle:
    handle = Handle(1, offset, nbytes)
    arena.open(handle)
    arena.write(handle, secrets.token_bytes(nbytes))
    return handle


async def measure(rows_nbytes: int, num_pictures: int, at_once: int) -> tuple[float, float]:
    """Wall and CPU seconds of a picture; the CPU's are those of both ends."""
    rows = memoryview(bytes(rows_nbytes))

    def answer(job: Job) -> None:
        message = Result(job=job.message.job, nbytes=rows_nbytes, digest=digest(rows), here_s=0.0, compute_s=0.0)
        job.answer(message, rows)

    extents = [PICTURE_NBYTES, *[rows_nbytes] * at_once]
    arena = Arena.create(sum(map(extent_nbytes, extents)))
    handles, offset = [], 0
    for nbytes in extents:
        handles.append(write(arena, offset, nbytes))
        offset += extent_nbytes(nbytes)
    listener = listening_socket("127.0.0.1", 0)
    encoders = Encoders(listener, _SECRET, {}, 1, arena, _TIMEOUT_S)
    joined = asyncio.Event()
    encoders.on_change = joined.set
    serving = asyncio.create_task(encoders.run())
    hello = Hello(name="a", facts={}, credit=64 << 20, slots=16)
    address = Address("127.0.0.1", listener.getsockname()[1])
    with (
        closing(arena),
        closing(encoders),
        closing(Dialer(address, _SECRET, hello, _TIMEOUT_S, answer, lambda _: None, print)) as dialer,
    ):
        await joined.wait()
        (link,) = encoders.links
        images = [Image(1, handles[0], embed) for embed in handles[1:]]
        await run(link, images, at_once)
        wall_s, cpu_s = time.perf_counter(), time.process_time()
        await run(link, images, num_pictures // at_once)
        count = num_pictures // at_once * at_once
        result = (time.perf_counter() - wall_s) / count, (time.process_time() - cpu_s) / count
        dialer.close()
        serving.cancel()
        with suppress(asyncio.CancelledError):
            await serving
    return result


async def run(link: EncoderLink, images: list[Image], times: int) -> None:
    """Each extent is filled ``times`` times; several at once."""

    async def again(image: Image) -> None:
        for _ in range(times):
            await link.encode(image)

    await asyncio.gather(*map(again, images))


def tower_s(threads: int, times: int = 3) -> float:
    """The best of several calls."""
    torch.set_num_threads(threads)
    config = transformers.CLIPVisionConfig(
        hidden_size=1024,
        intermediate_size=4096,
        num_hidden_layers=24,
        num_attention_heads=16,
        image_size=336,
        patch_size=14,
    )
    model, pixels = transformers.CLIPVisionModel(config).eval(), torch.rand(1, 3, 336, 336)
    taken = []
    with torch.inference_mode():
        for _ in range(times):
            started_s = time.perf_counter()
            model(pixel_values=pixels)
            taken.append(time.perf_counter() - started_s)
    return min(taken)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pictures", type=int, default=40)
    parser.add_argument("--threads", type=int, default=2, help="of the tower")
    arguments = parser.parse_args()
    print(f"a picture of {PICTURE_NBYTES >> 10} KiB out, its rows back, over loopback")
    print(f"{'rows':<36} {'MiB':>6} {'at once':>8} {'ms':>7} {'CPU ms':>7} {'MB/s':>6}")
    for name, nbytes in ROWS.items():
        for at_once in AT_ONCE:
            wall_s, cpu_s = asyncio.run(measure(nbytes, arguments.pictures, at_once))
            rate = (nbytes + PICTURE_NBYTES) / wall_s / 1e6
            size, wall, cpu = nbytes / 2**20, wall_s * 1e3, cpu_s * 1e3
            print(f"{name:<36} {size:>6.2f} {at_once:>8} {wall:>7.2f} {cpu:>7.2f} {rate:>6.0f}")
    here = tower_s(arguments.threads) * 1e3
    print(f"the tower of LLaVA 1.5 here: {here:.0f} ms a picture, {arguments.threads} threads")


if __name__ == "__main__":
    main()
