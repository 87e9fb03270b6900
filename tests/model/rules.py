"""The rules of docs/failover.md as switches: all on is the design."""

from __future__ import annotations

from typing import NamedTuple


class Rules(NamedTuple):
    """What holds. A fault is this with one field changed."""

    commit_first: bool = True
    """Nothing leaves, but relays, before the commit that explains it."""
    ack_committed: bool = True
    """A stage forgets an output when the core has committed it and all readers have it, not when it was received."""
    outputs_unfenced: bool = True
    """Outputs are judged by epoch, never by the attachment under which they were made."""
    outbox: bool = True
    """A takeover issues again what no stage has obeyed."""
    attach: bool = True
    """A stage obeys the highest attachment only."""
    watermark: bool = True
    """A resume announces what the stages have heard, not what the gateway that is gone had taken in."""
    lowest: bool = True
    """What is announced is the lowest watermark of all stages that hear."""
    stock_goes_on: bool = True
    """Audio of a client that sends nothing again takes positions above the highest watermark."""
    lost_hears_again: bool = True
    """A hearing stage that is lost at a takeover counts with the start of the open turn."""
    resend_acknowledged: bool = True
    """A takeover reads a stage's outputs from what was acknowledged, not from what the core consumed."""
    in_flight_ends: bool = True
    """An output that comes again after a takeover and is not relayed any more is not waited for."""
    in_flight_lost: bool = True
    """What a lost stage made and this gateway did not receive is not waited for on its edges."""
    base: bool = True
    """Output positions of a stage that is placed anew go on where the earlier placement's ended."""
    base_of_readers: bool = True
    """Where they ended is what readers have, too, not only what the core knows."""
    edge_positions: bool = True
    """A reader drops what it has by position."""
    client_seq: bool = True
    """Commands are numbered, and the highest decided is announced."""
    refused_counts: bool = True
    """One that is refused was decided, too, even by who cannot read it."""
    by_time: bool = True
    """An attachment is max(old + 1, time)."""
    restore: bool = True
    """A holder whose lease Redis forgot puts it back."""
    adopt: bool = True
    """A takeover goes to an epoch above that of every stage."""
    numbers_go_on: bool = True
    """Where a stage obeyed more than the checkpoint knows, orders are numbered above."""
    resync: bool = True
    """A takeover that finds stages or client ahead of the checkpoint says so and ends the open response."""
    resync_numbered: bool = True
    """What it says is an entry of the journal, numbered above all that the client has."""
    resync_once: bool = True
    """Where the journal has a gap, too, only that is told, and the replay begins with it."""
    gap_numbered: bool = True
    """A gap is told in the place of the last event that is not kept."""
    entryless_in_sequence: bool = True
    """A commit that carries no event goes on from the last one that is there, as every other."""
    undurable_counted: bool = True
    """What no commit carries has no number; the client counts it, and a resume says how much it had."""
    late_skip: bool = True
    """A muted event's number is told as skipped after the commit that ended the response, not before."""
    skip_numbered: bool = True
    """Muted sound leaves its number behind, or that it had none."""
    replay_muted: bool = True
    """A replay tells sound of a response that was cut short as skipped."""
    rehear: bool = True
    """A hearing stage that is placed anew hears the open turn again."""


DESIGN = Rules()
