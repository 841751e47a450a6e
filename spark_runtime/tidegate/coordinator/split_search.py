"""The enumerators of one run, which search for splits (S4.3). Their calls block."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any

from tidegate.connectors.interface import Source, SplitEnumerator
from tidegate.connectors.split_documents import split_to_json
from tidegate.coordinator.enumeration import SearchFailed, SplitsDiscovered
from tidegate.errors import OutageError, StoreError
from tidegate.log_format import context

logger = logging.getLogger("tidegate.coordinator")


class SplitSearch:
    """The enumerator of one source. Not thread-safe."""

    def __init__(self, uid: str, source: Source, state: Any) -> None:
        """Args: state: see `Source.create_enumerator`."""
        self._uid = uid
        self._create = lambda: source.create_enumerator(state)
        self._enumerator: SplitEnumerator | None = None

    def search(self) -> SplitsDiscovered | SearchFailed:
        """Search once. If the system that holds the splits does not answer, this is logged and tried again later.

        Raises:
            TypeError, ValueError: the splits or the state are not JSON.
            Exception: any other error of the enumerator, which fails the run.
        """
        try:
            if self._enumerator is None:
                self._enumerator = self._create()
            found = self._enumerator.discover()
        except (OutageError, StoreError) as error:
            logger.warning(
                "splits could not be discovered; it is tried again: %s", error, extra=context(operator=self._uid)
            )
            return SearchFailed(self._uid, error.what_and_why)
        # Through JSON, because the enumerator may change its state later, and a snapshot must be able to hold it.
        document = json.dumps([[split_to_json(split) for split in found.splits], found.state], allow_nan=False)
        splits, state = json.loads(document)
        return SplitsDiscovered(self._uid, tuple(splits), state, found.complete, found.more, found.readable_until_ms)

    def completed(self, checkpoint_id: int, state: Any) -> None:
        """Report a completed checkpoint to the enumerator. Its errors are logged, because the next checkpoint covers
        this one.

        Args:
            state: the enumerator's state in the checkpoint.
        """
        if self._enumerator is None:
            return
        try:
            self._enumerator.checkpoint_completed(checkpoint_id, state)
        except Exception:
            logger.exception(
                "an enumerator failed to process a completed checkpoint; the job continues",
                extra=context(operator=self._uid, checkpoint=checkpoint_id),
            )

    def close(self) -> None:
        """Close the enumerator. Errors are only logged."""
        if self._enumerator is None:
            return
        try:
            self._enumerator.close()
        except Exception:
            logger.exception("closing an enumerator failed", extra=context(operator=self._uid))


def searches_of(sources: Mapping[str, Source], states: Mapping[str, Any]) -> dict[str, SplitSearch]:
    """Return a search for each source in `states`, source uid -> the state with which its enumerator begins."""
    return {uid: SplitSearch(uid, sources[uid], state) for uid, state in states.items()}
