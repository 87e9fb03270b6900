"""Triton's interpreter with a NumPy from 2.4 on, which makes no integer of an array of one element any more."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("triton")

from triton import knobs
from triton.runtime import interpreter


def mend_interpreter() -> None:
    """Lets loops of interpreted kernels have bounds that were computed. Once a process; without the interpreter it does nothing."""
    if not knobs.runtime.interpret or hasattr(interpreter, "_patched_tensor"):
        return
    interpreter._patched_tensor = patch = interpreter._patch_lang_tensor

    def patched(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patched
