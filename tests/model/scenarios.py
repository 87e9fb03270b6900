"""Small worlds, each as large as what it is to show needs."""

from __future__ import annotations

from .world import Setup

SCENARIOS = {
    "answer": Setup(("start",), takeovers=2, deaths=1),
    "barge-in": Setup(("start", "barge"), takeovers=2),
    "refused": Setup(("noise", "start"), chunks=0, takeovers=2),
    "two answers": Setup(("start", "barge", "start"), takeovers=1, deaths=1),
    "mute": Setup(("start", "barge"), chunks=2, takeovers=1, deaths=1),
    "two ears": Setup(("say", "say", "say"), ("turn", "asr"), takeovers=2, deaths=1),
    "words and commands": Setup(("say", "start", "say", "barge"), ("asr", "llm"), takeovers=1),
    "stock": Setup(("say", "say", "say"), ("turn", "asr"), stock=True, takeovers=2, deaths=1),
    "stock commands": Setup(("say", "start", "say", "barge"), ("asr", "llm"), stock=True, takeovers=1),
    "edge": Setup(("start",), ("llm", "talker"), takeovers=2),
    "edge and barge-in": Setup(("start", "barge", "start"), ("llm", "talker"), chunks=0, takeovers=1),
    "edge, cut short": Setup(("start", "barge"), ("llm", "talker"), takeovers=1),
    "all stages": Setup(("say", "start", "say"), ("turn", "asr", "llm", "talker"), chunks=0, takeovers=1),
    "ear lost": Setup(("say", "say", "say"), ("turn", "asr"), losses=1, losable=("asr",)),
    "ear and gateway lost": Setup(("say", "say"), ("turn", "asr"), takeovers=2, losses=1, losable=("asr",)),
    "ear lost, stock": Setup(("say", "say", "say"), ("turn", "asr"), stock=True, takeovers=1, losses=1, losable=("asr",)),
    "source lost": Setup(("start", "start"), ("llm", "talker"), losses=1, losable=("llm",)),
    "reader lost": Setup(("start", "start"), ("llm", "talker"), losses=1, losable=("talker",)),
    "both lost": Setup(("start", "start"), ("llm", "talker"), chunks=0, losses=2, losable=("llm", "talker")),
    "source and gateway lost": Setup(("start", "start"), ("llm", "talker"), chunks=0, takeovers=1, losses=1, losable=("llm",)),
    "reader and gateway lost": Setup(("start", "start"), ("llm", "talker"), chunks=0, takeovers=1, losses=1, losable=("talker",)),
    "forgotten writes": Setup(("start", "barge", "start"), chunks=0, takeovers=1, forgets=1),
    "forgotten chunk": Setup(("start",), takeovers=1, forgets=1),
    "forgotten edge": Setup(("start",), ("llm", "talker"), chunks=0, takeovers=1, forgets=1),
    "forgotten twice resumed": Setup(("start",), chunks=0, takeovers=2, forgets=1),
    "forgotten takeover": Setup(("say", "start"), ("asr", "llm"), chunks=0, takeovers=2, forgets=1),
    "away": Setup(("start", "barge"), chunks=1, takeovers=1, outages=1),
    "away, with an edge": Setup(("start",), ("llm", "talker"), chunks=0, takeovers=1, outages=1),
    "away, with words": Setup(("say", "start", "say"), ("asr", "llm"), chunks=0, takeovers=1, outages=1),
    "away, then forgotten": Setup(("start",), chunks=0, takeovers=1, forgets=1, outages=1),
    "away and a stage lost": Setup(("start", "start"), chunks=1, losses=1, losable=("llm",), outages=1),
}
