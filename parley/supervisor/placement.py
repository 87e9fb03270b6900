"""Which service runs on which card, and how those on one card share it. Pure: what is there is given."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from msgspec import Struct

from .errors import NoSuchCard
from .machine import Machine
from .mps import CONTROL, PIPES

DEVICE, VISIBLE, BESIDE = "PARLEY_DEVICE", "CUDA_VISIBLE_DEVICES", "PARLEY_STAGES_ON_CARD"
AUTO, CPU, CUDA = "auto", "cpu", "cuda"
_UUID = re.compile(r"(GPU|MIG)-[0-9A-Za-z/-]+")


class Sharing(Struct, frozen=True):
    """Services on one card, for which a daemon is to be started. env: theirs, when it serves. said, otherwise: what people are told."""

    card: str
    services: tuple[str, ...]
    env: dict[str, str]
    said: str
    otherwise: str


class Placement(Struct, frozen=True):
    """env: by service, what it is started with, whatever comes of `sharings`. said, warnings: lines for people."""

    env: dict[str, dict[str, str]] = {}
    sharings: tuple[Sharing, ...] = ()
    said: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def place(wanted: Mapping[str, str], machine: Machine, gpus: Sequence[str] = (), *, mps: bool = True) -> Placement:
    """wanted: by service "auto" (a GPU if there is one), "cpu", "cuda" or "cuda:N". mps: whether a daemon may be started.

    gpus: for those that name no number, round robin, by number among the machine's cards or by UUID. Without it each has a card of its own
    where there are enough, else all have the first.
    Raises NoSuchCard.
    """
    automatic = CUDA if gpus or machine.cards else CPU
    devices = {name: automatic if device == AUTO else device for name, device in wanted.items()}
    if gpus and CUDA not in devices.values():
        raise NoSuchCard("cards are named (--gpus), but no service of this profile is to run on one of them: see PARLEY_DEVICE")
    cards = _cards(devices, machine, gpus)
    env = {name: {DEVICE: CUDA, VISIBLE: cards[name]} if name in cards else {DEVICE: device} for name, device in devices.items()}
    together: dict[str, list[str]] = {}
    for name, card in cards.items():
        together.setdefault(card, []).append(name)
    said, warnings, sharings = [], [], []
    if AUTO in wanted.values() and automatic == CPU:
        names = [name for name, device in wanted.items() if device == AUTO]
        said.append(f"no GPU was found: {_listed(names)} {'run' if names[1:] else 'runs'} on the CPU")
    for card, names in _by_card(cards).items():
        for name in names:
            env[name][BESIDE] = ",".join(names)
        who = f"{_listed(names)} share {_called(card, machine)}"
        slices = f"{who} by time slices, so that real time is kept for fewer sessions"
        if not names[1:]:
            said.append(f"{names[0]} has {_called(card, machine)}")
        elif machine.serves and machine.pipes:
            said.append(f"{who} through the MPS daemon of {machine.pipes}, which was there before")
            for name in names:
                env[name][PIPES] = machine.pipes
        elif why := _no_daemon(machine, mps):
            warnings.append(f"{slices}: {why}")
        else:
            # the daemon's servers see this card alone, and count anew; a UUID stays what it is
            seen = {VISIBLE: "0"} if card.isdecimal() else {}
            sharings.append(Sharing(card, tuple(names), seen, f"{who} through MPS", slices))
    return Placement(env, tuple(sharings), tuple(said), tuple(warnings))


def _cards(devices: Mapping[str, str], machine: Machine, gpus: Sequence[str]) -> dict[str, str]:
    """By service that is not on the CPU: its card."""
    plain = [name for name, device in devices.items() if device == CUDA]
    named = [name for name, device in devices.items() if device.startswith(f"{CUDA}:")]
    if not plain and not named:
        return {}
    known = machine.cards
    if known == ():
        raise NoSuchCard(f"{_listed([*plain, *named])} should run on a GPU (PARLEY_DEVICE), and there is none to be seen")
    pool = [_card(gpu, known) for gpu in gpus] or list(known or ("0",))
    if not gpus and len(pool) < len(plain):
        pool = pool[:1]
    chosen = {name: pool[at % len(pool)] for at, name in enumerate(plain)}
    chosen |= {name: _card(devices[name].partition(":")[2], known) for name in named}
    return {name: chosen[name] for name in devices if name in chosen}


def _card(name: str, known: tuple[str, ...] | None) -> str:
    if not name.isdecimal():
        if name in (known or ()) or _UUID.fullmatch(name):
            return name
        raise NoSuchCard(f"{name!r} names no GPU: a number, or a UUID as `nvidia-smi -L` lists it")
    if known is None:
        return name
    if int(name) >= len(known):
        count = f"{len(known)} GPU{'s' if len(known) > 1 else ''}"
        raise NoSuchCard(f"there is no GPU {name}: {count} can be seen, counted from 0" if known else f"there is no GPU {name}")
    return known[int(name)]


def _by_card(cards: Mapping[str, str]) -> dict[str, list[str]]:
    together: dict[str, list[str]] = {}
    for name, card in cards.items():
        together.setdefault(card, []).append(name)
    return together


def _no_daemon(machine: Machine, mps: bool) -> str:
    """Why none can be started; "" when one can."""
    if machine.pipes:
        return f"no daemon answers in {machine.pipes} ({PIPES})"
    if not mps:
        return "MPS is turned off"
    return "" if machine.control else f"{CONTROL} (MPS) is not on PATH"


def _called(card: str, machine: Machine) -> str:
    """As the machine numbers it; one that it knows by its UUID by the place among those that can be seen."""
    known = machine.cards or ()
    return f"GPU {card if card.isdecimal() or card not in known else known.index(card)}"


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}" if names[1:] else names[0]
