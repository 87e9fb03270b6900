"""Each rule matters: without it, a small world goes wrong."""

from __future__ import annotations

from typing import NamedTuple

from .rules import DESIGN, Rules


class Fault(NamedTuple):
    """One changed rule, and the scenario that shows what it breaks."""

    rules: Rules
    scenario: str
    breaks: str
    """How the violation's message begins."""


def _without(rule: str, scenario: str, breaks: str) -> Fault:
    return Fault(DESIGN._replace(**{rule: False}), scenario, breaks)


FAULTS = {
    "act-first": _without("commit_first", "answer", "something was lost, though Redis forgot nothing"),
    "ack-early": _without("ack_committed", "answer", "something was lost, though Redis forgot nothing"),
    "one-fence": _without("outputs_unfenced", "answer", "a response never ended"),
    "no-outbox": _without("outbox", "answer", "a response never ended"),
    "no-attach": _without("attach", "stock", "at sample position 1 one stage heard 1 and another 2"),
    "no-attach-forgotten": _without("attach", "forgotten chunk", "response 1 is done after 0 chunks"),
    "no-watermark": _without("watermark", "two ears", "turn hears sample 2, 1 is due"),
    "announce-highest": _without("lowest", "two ears", "asr hears sample 2, 1 is due"),
    "stock-goes-back": _without("stock_goes_on", "stock", "at sample position 1 one stage heard 1 and another 2"),
    "lost-not-announced": _without("lost_hears_again", "ear and gateway lost", "asr was placed anew and did not hear"),
    "resend-from-consumed": _without("resend_acknowledged", "edge", "a response never ended"),
    "in-flight-for-ever": _without("in_flight_ends", "edge and barge-in", "something never arrives"),
    "in-flight-of-the-lost": _without("in_flight_lost", "source and gateway lost", "something never arrives"),
    "no-base": _without("base", "source lost", "talker is brought the end of response 2, chunk 0 is due"),
    "base-of-the-core": _without("base_of_readers", "source and gateway lost", "a response never ended"),
    "no-edge-positions": _without("edge_positions", "edge", "talker is brought chunk 0 of response 1, chunk 1 is due"),
    "no-client-seq": _without("client_seq", "barge-in", "command 1 was obeyed twice"),
    "refused-uncounted": _without("refused_counts", "refused", "command 1 was obeyed twice"),
    "attachment-by-counter": _without("by_time", "forgotten takeover", "the last takeover does not have the session"),
    "no-restore": _without("restore", "forgotten takeover", "the last takeover does not have the session"),
    "no-adopt": _without("adopt", "forgotten chunk", "response 1 is done after 0 chunks"),
    "numbers-again": _without("numbers_go_on", "forgotten writes", "a response never ended"),
    "no-resync": _without("resync", "forgotten writes", "command 2 was obeyed twice"),
    "resync-unnumbered": _without("resync_numbered", "forgotten twice resumed", "one loss was told twice"),
    "resync-twice": _without("resync_once", "forgotten twice resumed", "one loss was told twice"),
    "gap-unnumbered": _without("gap_numbered", "away, then forgotten", "event 2 came, 1 is missing"),
    "entryless-anywhere": _without("entryless_in_sequence", "forgotten edge", "done of response 1, which is not open"),
    "unnumbered-uncounted": _without("undurable_counted", "away", "event 1 came, 2 is missing"),
    "early-mute": _without("late_skip", "mute", "chunk 1 of response 1 after muted ones"),
    "replay-unmuted": _without("replay_muted", "mute", "chunk 1 of response 1 after muted ones"),
    "mute-without-number": _without("skip_numbered", "mute", "event 3 came, 2 is missing"),
    "no-rehearing": _without("rehear", "ear lost", "asr was placed anew and did not hear"),
}
