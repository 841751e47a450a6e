"""Conformance of sinks that rewind upserts by restoring a whole table: where they differ from sinks that append."""

from __future__ import annotations

import pytest

from tidegate.connectors.interface import SupportsRewind
from tidegate.errors import SinkConflictError, TidegateError
from tidegate.testing.one_sink_job import TestWriter as Identity
from tidegate.testing.sink_conformance import SinkConformance


class UpsertConformance(SinkConformance):
    """With keys that never come twice, a table is as when rows are appended. Only rewinds are refused earlier."""

    def test_rewinding_takes_back_what_was_published_behind_the_snapshot(self) -> None:
        """S9.3: of every subtask, if no other program has changed rows since: its rows would be removed, too."""
        identity, later = Identity(), Identity()
        later.generation = 2
        everybody = later.context(0, parallelism=1)
        sink = self.make_sink(fresh=True)
        assert isinstance(sink, SupportsRewind)
        first, second = (sink.create_writer(identity.context(subtask)) for subtask in (0, 1))
        fork = sink.create_writer(Identity("lineage-2").context())
        fork.commit(self._prepared(fork, 3, 8, 2))
        first.commit(self._prepared(first, 1, 0, 2))
        held = self._prepared(second, 2, 2, 2)
        first.commit(self._prepared(first, 3, 4, 2))
        staged = self._prepared(second, 3, 6, 2)
        take_back = sink.rewind_to(everybody, 2, held)
        assert sorted(self.visible()) == [0, 1, 4, 5, 8, 9], "until the function is called, nothing changes"
        take_back()
        take_back()
        sink.rewind_to(everybody, 2, held)()
        assert sorted(self.visible()) == [0, 1, 8, 9]
        with pytest.raises(TidegateError):
            second.commit(staged)
        second.commit(held)
        assert sorted(self.visible()) == [0, 1, 2, 3, 8, 9]
        fork.commit(self._prepared(fork, 4, 10, 2))
        with pytest.raises(SinkConflictError, match="of another program, has changed rows"):
            sink.rewind_to(everybody, 1)

    def test_a_rewind_leaves_alone_what_a_newer_driver_has_begun(self) -> None:
        """S9.2, S9.3: the driver that rewinds may have been replaced without knowing it: it is refused."""
        identity = Identity()
        sink = self.make_sink(fresh=True)
        assert isinstance(sink, SupportsRewind)
        first = sink.create_writer(identity.context())
        first.commit(self._prepared(first, 1, 0, 2))
        first.commit(self._prepared(first, 2, 2, 2))
        identity.generation = 2
        take_back = sink.rewind_to(identity.context(0, parallelism=1), 1, before=3)
        identity.generation = 3
        newer = sink.create_writer(identity.context())
        newer.commit(self._prepared(newer, 3, 4, 2))
        staged = self._prepared(newer, 4, 6, 2)
        with pytest.raises(SinkConflictError, match="was committed in between"):
            take_back()
        assert sorted(self.visible()) == [0, 1, 2, 3, 4, 5]
        newer.commit(staged)
        assert sorted(self.visible()) == [0, 1, 2, 3, 4, 5, 6, 7]
