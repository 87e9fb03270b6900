"""Random draws that depend on what is drawn for, not on when or beside whom: Philox4x32-10 keyed by session.

J. Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (2011). A categorical draw is argmax(p / e) with independent exponentials e
(the exponential race), so that a fixture can inject e.
"""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_MASK = 0xFFFFFFFF


def session_seed(name: str) -> int:
    """A seed of 63 bits for a session's name."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little") >> 1


def philox(counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Philox4x32-10. All tensors are int64 with values below 2^32 and broadcast against each other; so are the four words."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        high0, low0 = _multiply(c0, _MULTIPLIERS[0])
        high1, low1 = _multiply(c2, _MULTIPLIERS[1])
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + _WEYL[0]) & _MASK, (k1 + _WEYL[1]) & _MASK
    return c0, c1, c2, c3


def exponentials(seed: Tensor, unit: Tensor, step: Tensor, draw: int, index: Tensor | int) -> Tensor:
    """fp32 [rows, columns] of exponential variates with mean 1, the same on every device, whatever else is in the batch.

    `seed`, `unit`, `step`: int64 [rows], not negative (step below 2^32); `draw` 0 to 63 tells draws of one step apart. `index`: the number
    of columns, or the columns wanted as int64 [columns] or [rows, columns]: a column's variate does not depend on which others are asked
    for. Raises ValueError for a draw out of range.
    """
    if isinstance(index, int):
        blocks = torch.arange(-(-index // 4), device=seed.device)[None]
        words = torch.stack(_words(seed, unit, step, draw, blocks), dim=-1).flatten(1)[:, :index]
    else:
        columns = index.expand(seed.shape[0], -1) if index.dim() == 2 else index[None].expand(seed.shape[0], -1)
        lanes = torch.stack(_words(seed, unit, step, draw, columns >> 2), dim=-1)
        words = lanes.gather(-1, (columns & 3)[..., None])[..., 0]
    return -torch.log((words.double() + 0.5) * 2.0**-32).float()


def choose(probabilities: Tensor, exponential: Tensor) -> Tensor:
    """int64 [rows]: a draw from each row of `probabilities` [rows, columns], which need not sum to 1; never one of probability 0."""
    return (probabilities / exponential).argmax(-1)


def _words(seed: Tensor, unit: Tensor, step: Tensor, draw: int, blocks: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    if not 0 <= draw < 64:
        raise ValueError("draw: not from 0 to 63")
    seed, unit, step = seed[:, None], unit[:, None], step[:, None]
    counter = (blocks | (draw << 26), step & _MASK, unit & _MASK, unit >> 32)
    return philox(counter, (seed & _MASK, seed >> 32))


def _multiply(values: Tensor, factor: int) -> tuple[Tensor, Tensor]:
    """High and low words of a 32 by 32 bit product: int64 holds all of its bits, the highest one as the sign."""
    product = values * factor
    return (product >> 32) & _MASK, product & _MASK
