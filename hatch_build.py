"""Compiles the C++ kernels into the wheel, for every instruction set of this machine's architecture.

They are called through addresses alone, so they depend on no version of Python or torch. An editable installation gets
none: it compiles its own when a server first starts. Without a compiler the wheel has none either.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

sys.path.insert(0, str(Path(__file__).parent))

from mmserve.model_backend.platforms.cpu.library import wheel

_SHIPPED = "mmserve/model_backend/platforms/cpu/library/shipped"


class KernelHook(BuildHookInterface):
    """Hatchling calls ``initialize`` before it writes a wheel, ``finalize`` afterwards."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        self._directory = tempfile.TemporaryDirectory()
        if version == "editable":
            return
        try:
            libraries = wheel.compile_all(Path(self._directory.name))
        except (OSError, subprocess.SubprocessError) as error:
            self.app.display_warning(f"a wheel without C++ kernels, to be compiled where it is installed: {error}")
            return
        if libraries:
            build_data["force_include"].update({str(path): f"{_SHIPPED}/{path.name}" for path in libraries})
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{wheel.platform_tag(libraries)}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        self._directory.cleanup()
