"""Kernels of Triton compiled by many threads before they are launched. A first launch compiles alone, and a start launches hundreds of
kinds."""
# mypy: allow-untyped-calls

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from threading import Lock, get_ident
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

MOST_THREADS = 12
"""A sixth of a compilation holds Python's lock: more threads would wait for each other."""
WALK = Lock()
"""Held by the one thread that walks: what it put in the place of a launch, it puts back."""


class Compiled(NamedTuple):
    """What came of it. `error`: the first of the walk or of a compilation; what it left out is compiled when it is launched."""

    kernels: int
    seconds: float
    error: Exception | None


def compile_ahead(walk: Callable[[], object], facts: object, code: Iterable[Path]) -> Compiled | None:
    """Compiles what `walk` launches on the current device, and returns when all is in Triton's cache and at hand in this process.

    `walk` runs on tensors of torch's device `meta`, which have shapes and no memory, whatever it finds or asks for: nothing is launched,
    computed, read or written. It must not ask for a value, nor keep a tensor. Other threads launch as ever.

    Whatever decides what is launched is either in `facts`, by its repr, or in the Python files below the folders `code`: once all was
    compiled, a later process where they are the same walks no more. None: nothing was to be done, or Triton cannot do it. Raises nothing.
    """
    begun = time.monotonic()
    try:
        if find_spec("triton") is None:
            return None
        import triton

        if not hasattr(triton, "AsyncCompileMode") or triton.knobs.runtime.interpret:
            return None
        mark = _mark(facts, code)
        if mark.exists():
            return None
        with _Compilers() as compilers:
            error = _requested(walk, compilers) or compilers.error
        if error is None:
            mark.parent.mkdir(parents=True, exist_ok=True)
            mark.touch()
    except Exception as failure:
        return Compiled(0, time.monotonic() - begun, failure)
    return Compiled(compilers.kernels, time.monotonic() - begun, error)


def _mark(facts: object, code: Iterable[Path]) -> Path:
    """The file which says that a walk of these facts was compiled."""
    import triton

    said = hashlib.sha256(repr((facts, torch.__version__, triton.__version__, triton.runtime.driver.active.get_current_target())).encode())
    for file in sorted(file for folder in code for file in folder.rglob("*.py")):
        said.update(file.read_bytes())
    return Path(triton.knobs.cache.dir) / f"compiled-{said.hexdigest()[:32]}"


def _requested(walk: Callable[[], object], compilers: _Compilers) -> Exception | None:
    """What the walk raised. All that it requested until then is compiled when this returns."""
    import triton

    error: Exception | None = None
    with triton.AsyncCompileMode(compilers, ignore_errors=True), WALK, _requests():
        try:
            with _Shapes(), torch.no_grad():
                walk()
        except Exception as failure:
            error = failure
    return error


@contextmanager
def _requests() -> Iterator[None]:
    """This thread's launches only ask for the kernel."""
    from triton.runtime.jit import JITFunction

    launch, walking = JITFunction.run, get_ident()

    def run(kernel: Any, *args: Any, grid: Any, warmup: bool, **named: Any) -> Any:
        if get_ident() != walking:
            return launch(kernel, *args, grid=grid, warmup=warmup, **named)
        places = {name: _StandIn.of(value) for name, value in named.items()}
        return launch(kernel, *map(_StandIn.of, args), grid=grid, warmup=True, **places)

    JITFunction.run = run
    try:
        yield
    finally:
        JITFunction.run = launch


class _Shapes(TorchDispatchMode):
    """Torch's operations see only the shapes of tensors, and give only those of their outcomes."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # a view of a tensor from outside of inference mode has to be of that kind
        with torch.inference_mode(False):
            args, kwargs = tree_map(_shape, (args, kwargs or {}))
            return func(*args, **kwargs)


def _shape(value: Any) -> Any:
    if isinstance(value, torch.device):
        return torch.device("meta")
    if not isinstance(value, Tensor) or value.is_meta:
        return value
    storage = torch.empty(value.untyped_storage().nbytes() // value.element_size(), dtype=value.dtype, device="meta")
    return storage.as_strided(value.shape, value.stride(), value.storage_offset())


class _StandIn:
    """All that Triton looks at in a tensor: its dtype, and by what its address is aligned."""

    def __init__(self, tensor: Tensor) -> None:
        self.dtype = tensor.dtype
        # memory begins at a multiple of any alignment that is asked for
        self._address = int(tensor.storage_offset()) * tensor.element_size() if tensor.is_meta else tensor.data_ptr()

    @staticmethod
    def of(value: Any) -> Any:
        return _StandIn(value) if isinstance(value, Tensor) else value

    def data_ptr(self) -> int:
        return self._address


class _Compilers(Executor):
    """Threads that compile."""

    def __init__(self) -> None:
        self.kernels = 0
        self.error: Exception | None = None
        self._pool = ThreadPoolExecutor(min(MOST_THREADS, len(os.sched_getaffinity(0))), "compiling")
        self._launchers: set[tuple[object, ...]] = set()
        self._lock = Lock()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        return self._pool.submit(self._compiled, fn, *args, **kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._pool.shutdown(wait, cancel_futures=cancel_futures)

    def _compiled(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        try:
            kernel = fn(*args, **kwargs)
            self._prepare_launcher(kernel)
        except Exception as error:
            with self._lock:
                self.error = self.error or error
            raise
        with self._lock:
            self.kernels += 1
        return kernel

    def _prepare_launcher(self, kernel: Any) -> None:
        """Before Triton 3.7 what launches kernels of one signature is a C extension, which takes as long as a kernel."""
        from triton.runtime import driver

        signature = tuple(kernel.src.signature.values())
        with self._lock:
            known = signature in self._launchers
            self._launchers.add(signature)
        if not known:
            driver.active.launcher_cls(kernel.src, kernel.metadata)
