"""Named crash points, where a test kills this process to prove that nothing is lost or doubled. Off unless PARLEY_CRASH_AT names one."""

from __future__ import annotations

import os
import signal

_NAME, _, _COUNT = os.environ.get("PARLEY_CRASH_AT", "").partition(":")
_left = int(_COUNT or 1)


def here(name: str) -> None:
    """SIGKILL to ourselves at the COUNTth passing of PARLEY_CRASH_AT=NAME[:COUNT]."""
    global _left
    if name != _NAME:
        return
    _left -= 1
    if _left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
