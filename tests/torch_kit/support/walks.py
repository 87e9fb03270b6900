"""Walks before which nothing was compiled, on a pretended card: prints what came of each."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.runtime.jit import JITFunction

from tests.support.pretended_card import PretendedCard
from torch_kit.compiling import compile_ahead


@triton.jit(do_not_specialize=["count"])
def _doubled(x, out, count, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + place, 2 * tl.load(x + place, place < count), place < count)


@triton.jit
def _wrong(x):
    tl.store(x, nobody_knows(x))  # noqa: F821


SHORT_S, LONG_S = 0.5, 20.0
HELD = torch.ones(100)
CARD = PretendedCard().install()
RUN = JITFunction.run
seen: list[Any] = []


def doubled(x: Tensor, block: int) -> Tensor:
    out = torch.empty_like(x)
    _doubled[(1,)](x, out, len(x), BLOCK=block)
    return out


def several() -> None:
    """Three kinds: of two blocks, and of an address that is not aligned."""
    seen.append("walked")
    HELD.add_(1)
    for size in (100, 64, 1):
        beyond = torch.zeros(size, dtype=torch.int64, device=HELD.device) + 10**9
        doubled(doubled(HELD[beyond], 64), 128)
    doubled(HELD[1:], 64)


def raising() -> None:
    doubled(HELD, 256)
    raise ValueError


def asking() -> None:
    doubled(HELD, 256)
    float(HELD.sum())


def wrong() -> None:
    _wrong[(1,)](HELD)
    doubled(HELD, 512)


def beside() -> None:
    """Another thread launches what is compiled, while this one walks."""
    other = Thread(target=doubled, args=(torch.ones(3), 64))
    other.start()
    other.join()


def two_at_once() -> dict[str, Any]:
    """The second would begin within the first, and go on behind its end."""
    second_walks, first_ended, found = Event(), Event(), {}

    def second() -> None:
        second_walks.set()
        first_ended.wait(LONG_S)
        doubled(HELD, 2048)

    def first() -> None:
        other.start()
        found["overlapped"] = second_walks.wait(SHORT_S)
        doubled(HELD, 1024)

    other = Thread(target=lambda: found.update(second=compile_ahead(second, "second", [])))
    before = len(CARD.launched)
    kernels = compile_ahead(first, "first", [])
    first_ended.set()
    other.join()
    restored, JITFunction.run = JITFunction.run is RUN, RUN
    outcomes = [[each.kernels, type(each.error).__name__] for each in (kernels, found["second"]) if each is not None]
    return {"overlapped": found["overlapped"], "outcomes": outcomes, "launched": len(CARD.launched) - before, "restored": restored}


def said(walk: Callable[[], None], facts: object = None, code: Path | None = None) -> dict[str, Any]:
    """What came of it, and how many launches there were until then."""
    found, before = compile_ahead(walk, (walk.__name__, facts), [code] if code else []), len(CARD.launched)
    assert JITFunction.run is RUN
    if found is None:
        return {"nothing": True}
    return {"kernels": found.kernels, "error": type(found.error).__name__, "launched": before}


def main() -> None:
    late: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        code = Path(folder)
        (code / "tile.py").write_text("1")
        told: dict[str, Any] = {"several": said(several, code=code)}
        told["held"] = HELD.tolist() == [1.0] * 100
        triton.knobs.compilation.listener = lambda *, src, **_: late.append(src.name)
        doubled(torch.ones(7), 64)
        doubled(torch.ones(7), 128)
        told["late"], told["launched"] = list(late), list(CARD.launched)
        triton.knobs.compilation.listener = None
        told["again"] = said(several, code=code)
        told["other facts"] = said(several, 1, code)
        (code / "tile.py").write_text("2")
        told["other code"] = said(several, code=code)
    told["walked"] = len(seen)
    told |= {walk.__name__: said(walk) for walk in (raising, asking, wrong, beside)}
    told["raising again"] = said(raising)
    told["two at once"] = two_at_once()
    print(json.dumps(told))


if __name__ == "__main__":
    main()
