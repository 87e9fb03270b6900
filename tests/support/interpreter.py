"""Triton's interpreter, mended: NumPy makes no integer of an array of one element from 2.4 on, and e4m3 neither carries nor has a NaN."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

import triton.language as tl
from triton import knobs
from triton.runtime import interpreter

from tests.support.interpreter_pace import hasten_interpreter


def mend_interpreter() -> None:
    """Lets loops of interpreted kernels have bounds that were computed, and rounds to fp8 as torch does.

    Once a process; without the interpreter it does nothing. A function that a kernel calls finds the language as the kernel does: what
    every call patches anew would wrap itself ever deeper.
    """
    if not knobs.runtime.interpret or hasattr(interpreter, "_patched_tensor"):
        return
    interpreter._patched_tensor = patch = interpreter._patch_lang_tensor

    def patched(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    patch_language, whole = interpreter._patch_lang, SimpleNamespace(__globals__={"tl": tl, "core": tl.core})
    interpreter._patch_lang_tensor = patched
    interpreter._patch_lang = lambda fn: patch_language(whole)
    interpreter.InterpretedFunction.__call__ = lambda self, *given, **named: self.rewrite()(*given, **named)
    interpreter._convert_float = _converted(interpreter._convert_float)
    hasten_interpreter()


def _converted(convert: Any) -> Any:
    kinds = {tl.float32: torch.float32, tl.float8e4nv: torch.float8_e4m3fn}

    def converted(data: Any, source: Any, target: Any, rounding: Any) -> Any:
        if tl.float8e4nv not in (source, target) or source not in kinds or target not in kinds:
            return convert(data, source, target, rounding)
        made = torch.from_numpy(data.copy()).view(kinds[source]).to(kinds[target])
        return made.view(torch.uint8 if target == tl.float8e4nv else torch.uint32).numpy()

    return converted
