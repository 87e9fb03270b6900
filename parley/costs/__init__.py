"""`parley costs`: keeps the deletion cost of a release's pods at the number of their sessions, so that a scale-in takes the emptiest.

Needs the extra `parley[server]`. One process for a release; two of them would write the same.
"""

from __future__ import annotations

from .cluster import ACCOUNT, ANNOTATION, Refused, api_of_this_pod
from .controller import Controller, Options, pause_s, serve
from .reading import Reading, cost, reading

__all__ = ["ACCOUNT", "ANNOTATION", "Controller", "Options", "Reading", "Refused", "api_of_this_pod", "cost", "pause_s", "reading", "serve"]
