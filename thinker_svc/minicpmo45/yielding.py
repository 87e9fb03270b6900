"""The thinker among those who share its card."""

from __future__ import annotations

import os

PRIORITY, BELOW = "CUDA_MPS_CLIENT_PRIORITY", "1"


def yield_card() -> None:
    """Under MPS the talker and the vocoder go first, unless the environment says who does; before CUDA is first asked anything.

    A sentence that is written waits for them anyway, while one that is written on and on keeps everybody from speaking.
    """
    os.environ.setdefault(PRIORITY, BELOW)
