"""The thinker's decisions: fused and plain draws compared, then head, each kernel and all of them together, beside their floors.

`python -m benchmarks.native.draw_kernels` on a machine with a GPU; with `--tiny --device cpu` and TRITON_INTERPRET=1 a rehearsal. Results
are written part by part.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks import report
from benchmarks.native import card as cards
from benchmarks.native.card import Card
from benchmarks.native.copies import copied_us
from benchmarks.native.decoder_kernels import cell, dtype_on
from benchmarks.native.floors import Floor
from benchmarks.native.timing import graphed, kernels
from minicpmo45.tokens import ADDED_TOKENS, NAMES, Tokens
from thinker_svc.minicpmo45.decider import Decider
from thinker_svc.minicpmo45.fused_decider import FusedDecider
from thinker_svc.minicpmo45.kernels.memory import remember
from thinker_svc.minicpmo45.kernels.settle import settle
from thinker_svc.minicpmo45.kernels.shortlist import shortlist
from thinker_svc.minicpmo45.kernels.survey import survey
from thinker_svc.minicpmo45.sampler import HISTORY, Manner, Sampling
from thinker_svc.minicpmo45.unit import UnitRules

VOCABULARY, HIDDEN = 151_748, 4096
TINY_HIDDEN = 32
COPY_BYTES = 400e6
"""What the copies of logits take at least: several times the L2."""
ROUNDS = 24
"""Batches whose tokens are compared."""
Row = dict[str, Any]


class Scene(NamedTuple):
    """`rows` decide; the first `drafts` of them drafted."""

    rows: int
    drafts: int

    @property
    def lines(self) -> int:
        return self.rows + self.drafts


class Given:
    """A decider, plain and fused over the same state, whose sessions all remember as much as they can, in the middle of a unit."""

    def __init__(self, scene: Scene, hidden: int, device: torch.device) -> None:
        ids = {field: ADDED_TOKENS[name] for field, name in NAMES.items()}
        self.tokens = Tokens(**ids)
        generator = torch.Generator().manual_seed(3)
        forbidden = torch.rand(VOCABULARY, generator=generator) < 0.01
        forbidden[[self.tokens.chunk_eos, self.tokens.tts_pad]] = True
        forbidden[[self.tokens.speak, self.tokens.listen, self.tokens.turn_eos]] = False
        characters = torch.randint(0, 4, (VOCABULARY,), generator=generator)
        words: Any = SimpleNamespace(tokens=self.tokens, forbidden=forbidden.numpy(), characters=characters.numpy())
        self.scene, self.device, self.dtype = scene, device, dtype_on(device)
        self.decider = Decider(words, scene.rows, hidden, self.dtype, device, None)
        self.fused = FusedDecider(self.decider, self.tokens)
        for slot in range(scene.rows):
            self.decider.tune(slot, Sampling(), UnitRules(64, 1 << 40), slot)
            self.decider.sampler.observe(slot, torch.randint(0, VOCABULARY, (HISTORY + slot,), generator=generator).tolist())
        opens = [[slot, 1, 0, 0, 0, int(slot < scene.drafts)] for slot in range(scene.rows)]
        self.numbers = torch.tensor(opens, device=device)
        self.hidden = torch.randn(scene.lines, hidden, device=device).to(self.dtype)

    def logits(self, seed: int) -> Tensor:
        """Of a spread like the model's; the first token is mostly `<|speak|>`."""
        generator = torch.Generator(self.device).manual_seed(seed)
        made = torch.randn(self.scene.lines, VOCABULARY, generator=generator, device=self.device).mul_(3)
        made[: self.scene.rows, self.tokens.speak] += 16
        return made.to(self.dtype)

    def held(self) -> list[Tensor]:
        """All that a decision changes."""
        return [*self.decider.sampler.tables[2:5], *self.decider.units.tables[1:5], self.decider.states]


def compared(scene: Scene, hidden: int, device: torch.device, rounds: int) -> Row:
    """How many of so many decisions the two paths make otherwise, and whether they leave the same state where they decide alike."""
    given = Given(scene, hidden, device)
    start = [each.clone() for each in given.held()]
    real, differ, told, accepted = slice(0, scene.rows), 0, 0, 0
    for number in range(rounds):
        logits, made = given.logits(number), []
        for decide in (given.decider.decide, given.fused.decide):
            for held, was in zip(given.held(), start, strict=True):
                held.copy_(was)
            decided = decide(given.numbers, given.hidden, logits, Manner.NARROW)
            made.append((decided, [each[real].clone() for each in given.held()]))
        (plain, kept), (fused, left) = made
        other = int((plain != fused).any(1).sum())
        differ, told, accepted = differ + other, told + len(plain), accepted + int((plain[scene.rows :, 0] >= 0).sum())
        if not other:
            # of a unit's states those that nobody reads are not compared
            same = all(torch.equal(mine, theirs) for mine, theirs in zip(left[:-1], kept[:-1], strict=True))
            same &= torch.equal(left[-1][:, :-1], kept[-1][:, :-1])
            if not same:
                raise AssertionError("the same tokens, another state")
    row = {
        "rows": scene.rows,
        "drafts": scene.drafts,
        "decisions": told,
        "accepted": accepted,
        "differ": differ,
        "holds": differ * 1000 <= told,
    }
    print(row, flush=True)
    return row


def alone(scene: Scene, hidden: int, device: torch.device, card: Card) -> Iterator[Row]:
    """A row a kernel and way to launch it: microseconds in a graph over copies of the logits that no cache holds."""
    given = Given(scene, hidden, device)
    tables, units = given.decider.sampler.tables, given.decider.units.tables
    fused, tokens = given.fused, given.tokens
    element = given.dtype.itemsize
    copies = min(max(round(COPY_BYTES / (scene.lines * VOCABULARY * element)), 1), 16) if device.type == "cuda" else 1
    logits = [given.logits(copy) for copy in range(copies)]
    marks = torch.empty(scene.lines, len(fused._forbidden), dtype=torch.int32, device=device)
    remember(given.numbers, tables.history, tables.drawn, marks, tokens.speak)
    args = given.numbers, units.step, given.decider.seeds, tables.settings, tables.choices, fused._forbidden, marks, tokens.turn_eos
    surveyed = [survey(each, *args) for each in logits]
    picks = shortlist(logits[0], surveyed[0], *args, tokens.chunk_eos)
    taken = [(each, *args) for each in logits]
    listed = [(each, noted, *args, tokens.chunk_eos) for each, noted in zip(logits, surveyed, strict=True)]
    read = Floor(scene.lines * VOCABULARY * element, 0)

    def row(kernel: str, way: str, floor: Floor, call: Callable[[int], object], times: int = copies) -> Row:
        us = copied_us(device, call, times)
        found = {"rows": scene.rows, "drafts": scene.drafts, "kernel": kernel, "way": way, "us": us, "floor us": floor.ms(card) * 1000}
        print(found, flush=True)
        return found

    weights = torch.randn(VOCABULARY if device.type == "cuda" else 64, hidden, device=device).to(given.dtype)
    head = Floor(weights.numel() * element + scene.lines * len(weights) * element, 2.0 * weights.numel() * scene.lines)
    yield row("head", "cuBLAS", head, lambda _: functional.linear(given.hidden, weights), 1)
    history = Floor(scene.lines * (HISTORY * 8 + marks.shape[1] * 4), 0)
    yield row("remember", "served", history, lambda _: remember(given.numbers, tables.history, tables.drawn, marks, tokens.speak), 1)
    yield row("survey", "served", read, lambda copy: survey(logits[copy], *args))
    on_card = device.type == "cuda"
    for block, warps in ((512, 4), (1024, 4), (1024, 8), (2048, 4), (2048, 8), (4096, 8)) if on_card else ():
        yield row("survey", f"{block}, {warps} warps", read, partial(_launched, survey, taken, {"block": block, "warps": warps}))
    tops = Floor(surveyed[0].tops.numel() * 4, 0)
    for warps in (4, 8) if on_card else (4,):
        yield row("shortlist", f"{warps} warps", tops, partial(_launched, shortlist, listed, {"warps": warps}))
    states, judged = Floor(2.0 * given.hidden.numel() * element, 0), (picks, given.numbers, given.hidden, None, units.characters)
    yield row("settle", "served", states, lambda _: settle(*judged, fused._slots, tokens, scene.rows), 1)
    yield row("all but head", "served", read, lambda copy: fused.decide(given.numbers, given.hidden, logits[copy], Manner.NARROW))


def _launched(kernel: Any, given: list[tuple[Any, ...]], how: dict[str, int], copy: int) -> object:
    return kernel(*given[copy], **how)


def whole(scene: Scene, hidden: int, device: torch.device, card: Card) -> Row:
    """Decisions from a graph, without the head: milliseconds and kernels, fused, plain, and where a row may draw among all."""
    given = Given(scene, hidden, device)
    logits = given.logits(1)
    row: Row = {"rows": scene.rows, "drafts": scene.drafts, "floor ms": Floor(logits.nbytes, 0).ms(card)}
    fused, plain = given.fused.decide, given.decider.decide
    ways = {"fused": (fused, Manner.NARROW), "plain": (plain, Manner.NARROW), "wide": (fused, Manner.WIDE)}
    for name, (decide, manner) in ways.items():
        if device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        held = torch.cuda.memory_allocated() if device.type == "cuda" else 0

        run = partial(decide, given.numbers, given.hidden, logits, manner)

        try:
            row[f"{name} kernels"] = kernels(device, run)[0] if device.type == "cuda" else run() is None
            row[f"{name} ms"] = graphed(device, run)
        except torch.OutOfMemoryError:
            row[f"{name} ms"] = "out of memory"
        if device.type == "cuda":
            row[f"{name} MB"] = round((torch.cuda.max_memory_allocated() - held) / 1e6)
    print(row, flush=True)
    return row


def sections(raw: Row) -> list[tuple[str, str]]:
    """Tables of the parts that there are."""
    card: Row = raw["card"]
    made = [("Card", f"{card['name']}, torch {card['torch']}, {card['date']}")]
    for title, part in (
        ("Fused and plain draws compared", "compared"),
        ("Decisions without the head, in a graph", "whole"),
        ("Kernels, microseconds a call in a graph", "kernels"),
    ):
        if rows := raw.get(part):
            header = list(dict.fromkeys(name for row in rows for name in row))
            made.append((title, report.table(header, [[cell(row.get(name)) for name in header] for row in rows])))
    return made


def main(arguments: list[str] | None = None) -> Row:
    """Runs what the arguments name; the raw results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="one row and one draft: a rehearsal")
    parser.add_argument("--scenes", nargs="+", default=["1+0", "1+1", "64+0", "128+0", "128+128"], help="rows+drafts")
    parser.add_argument("--parts", nargs="+", choices=("compared", "whole", "kernels"), default=["compared", "whole", "kernels"])
    parser.add_argument("--name", default="draw_kernels", help="of the results")
    options = parser.parse_args(arguments)
    device = torch.device(options.device)
    if device.type == "cpu":
        from tests.support.interpreter import mend_interpreter

        mend_interpreter()
    wanted = [Scene(*map(int, scene.split("+"))) for scene in (["1+1"] if options.tiny else options.scenes)]
    hidden, rounds = (TINY_HIDDEN, 1) if options.tiny else (HIDDEN, ROUNDS)
    card = cards.measure(device)
    raw: Row = {"card": {"name": card.name, "torch": card.torch, "date": card.date}}
    with torch.no_grad():
        for part in options.parts:
            rows = raw.setdefault(part, [])
            for scene in wanted:
                if part == "compared":
                    # the plain path takes gigabytes for more
                    rows.append(compared(Scene(min(scene.rows, 16), min(scene.drafts, 16)), hidden, device, rounds))
                elif part == "whole":
                    rows.append(whole(scene, hidden, device, card))
                else:
                    rows += alone(scene, hidden, device, card)
                report.write(options.name, "The thinker's draws", sections(raw), raw)
    return raw


if __name__ == "__main__":
    main()
