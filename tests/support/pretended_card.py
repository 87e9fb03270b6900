"""A card as far as Triton looks at one: kernels are compiled for it, for real, and what is launched is written down. It needs no GPU, and
a process without Triton's interpreter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

MANY = 1 << 20


class PretendedCard:
    """What Triton asks of a driver; `launched`: names of kernels, in order."""

    def __init__(self) -> None:
        from triton.backends.compiler import GPUTarget

        self.launched: list[str] = []
        self.target = GPUTarget("cuda", 90, 32)
        self.utils = SimpleNamespace(
            get_device_properties=lambda device: {"max_shared_mem": MANY, "multiprocessor_count": 1, "warpSize": 32},
            load_binary=lambda *args: (None, 0, 0, 0, MANY),
            unload_module=lambda module: None,
        )

    def install(self) -> PretendedCard:
        from triton.runtime.driver import driver

        driver.set_active(self)
        return self

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> Any:
        return self.target

    def launcher_cls(self, source: Any, metadata: Any) -> Any:
        """What launches kernels of the source's signature."""
        return lambda *args: self.launched.append(source.fn.__name__)


def told_by(module: str, cache: Path) -> Any:
    """What `python -m module` prints, a line of JSON, in a process without the interpreter."""
    if sys.platform != "linux":
        pytest.skip("Triton has no compiler here")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(cache), "OMP_NUM_THREADS": "1"}
    ran = subprocess.run([sys.executable, "-m", module], env=environment, cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)
