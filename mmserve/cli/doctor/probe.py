"""What torch, the C++ kernels and the GPUs are like, as JSON. A program of its own: a broken torch ends it alone.

``python -m mmserve.cli.doctor.probe``
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

_DRIVER_FILE = Path("/proc/driver/nvidia/version")


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
    return {"version": torch.__version__, "cuda": torch.version.cuda, "gpus": gpus, "driver": driver_version()}


def driver_version(file: Path = _DRIVER_FILE) -> str | None:
    """Of the NVIDIA driver; None without one."""
    try:
        first = file.read_text().partition("\n")[0]
    except OSError:
        return None
    found = re.search(r"\b\d+(\.\d+)+\b", first)
    return found[0] if found else None


def _kernels() -> dict[str, Any]:
    try:
        from mmserve.model_backend.platforms.cpu.library import build, compiler, levels
        from mmserve.model_backend.platforms.cpu.self_test import verified_kernels
        from mmserve.model_backend.platforms.cpu.ways import candidates, store
        from mmserve.runtime import user_cache
    except (ImportError, OSError) as error:
        return {"error": str(error)}
    possible = {compiler.file_name(level): level for level in levels.of_this_cpu()}
    name, fastest = next(iter(possible.items()))
    try:
        cached = (user_cache.directory() / name).exists()
    except OSError:
        cached = False
    source = "wheel" if build.is_shipped(fastest) else "cache" if cached else ""
    # Without a file, the self-test would compile for many seconds.
    verified = verified_kernels("auto") if source else None
    if verified is not None:
        name = Path(verified._name).name
    measured = [found for kept in store.kept() if kept.kernels == name for found in kept.measured]
    faster = [found for found in measured if found.way != candidates.default(found.product.format, found.rows)]
    return {
        "level": possible[name].name,
        "levels": [level.name for level in possible.values()],
        "refuses_tiles": levels.refuses_tiles(),
        "source": source,
        "compilers": compiler.compilers(),
        "correct": verified is not None if source else None,
        "measured": len(measured),
        "faster": [(*found.product, found.rows, round(found.gain, 3)) for found in faster],
    }


if __name__ == "__main__":
    main()
