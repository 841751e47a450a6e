"""Names of `CollectSink`s, which share one registry in a process."""

from __future__ import annotations

import itertools

from tidegate.testing import collect_sink

_numbers = itertools.count()


def new_sink_name() -> str:
    """A name that no other test has."""
    return f"sink-{next(_numbers)}"


def forget_sinks(name: str) -> None:
    """Forget what was collected under a name, and under those that begin with it and a hyphen."""
    for known in list(collect_sink._registry):
        if known == name or known.startswith(f"{name}-"):
            collect_sink.clear_collected(known)
