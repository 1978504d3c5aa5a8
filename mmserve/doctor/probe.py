"""What torch, the C++ kernels and the GPUs are like, as JSON. A program of its own: a broken torch ends it alone.

``python -m mmserve.doctor.probe``
"""

from __future__ import annotations

import json
from typing import Any


def main() -> None:
    """Print one JSON object. What cannot be imported or loaded is named under ``error``."""
    print(json.dumps({"torch": _torch(), "kernels": _kernels()}))


def _torch() -> dict[str, Any]:
    try:
        import torch
    except (ImportError, OSError) as error:
        return {"error": str(error)}
    gpus = []
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            found = torch.cuda.get_device_properties(index)
            free, total = torch.cuda.mem_get_info(index)
            peers = [
                other
                for other in range(torch.cuda.device_count())
                if other != index and torch.cuda.can_device_access_peer(index, other)
            ]
            capability = f"{found.major}.{found.minor}"
            gpus.append({"name": found.name, "free": free, "total": total, "capability": capability, "peers": peers})
    return {"version": torch.__version__, "cuda": torch.version.cuda, "threads": torch.get_num_threads(), "gpus": gpus}


def _kernels() -> dict[str, Any]:
    try:
        from mmserve.model_backend.platforms.cpu.library import build, compiler, levels
        from mmserve.model_backend.platforms.cpu.self_test import verified_kernels
        from mmserve.model_backend.platforms.cpu.ways import candidates, store
        from mmserve.runtime import user_cache
    except (ImportError, OSError) as error:
        return {"error": str(error)}
    level = levels.of_this_cpu()[0]
    name = compiler.file_name(level)
    try:
        cached = (user_cache.directory() / name).exists()
    except OSError:
        cached = False
    measured = [found for kept in store.kept() if kept.kernels == name for found in kept.measured]
    faster = [found for found in measured if found.way != candidates.default(found.product.format, found.rows)]
    source = "wheel" if build.is_shipped(level) else "cache" if cached else ""
    return {
        "level": level.name,
        "source": source,
        "compilers": compiler.compilers(),
        # Without a file, the self-test would compile for many seconds.
        "correct": verified_kernels() is not None if source else None,
        "measured": len(measured),
        "faster": [(*found.product, found.rows, round(found.gain, 3)) for found in faster],
    }


if __name__ == "__main__":
    main()
