"""The status hint: what it shows is asked for when it is written, not with every heartbeat of a slot."""

from __future__ import annotations

import secrets
from typing import Any

import pytest

from tidegate.contract.layout import JobLayout
from tidegate.contract.memory_store import MemoryStore
from tidegate.contract.records import StatusHint, decode
from tidegate.spark.hint import HintWriter

LAYOUT = JobLayout("job")


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(secrets.token_hex(8))


def written(store: MemoryStore) -> StatusHint:
    return decode(store.read(LAYOUT.status(1)), StatusHint)


def test_what_is_shown_is_asked_for_at_each_write(store: MemoryStore) -> None:
    hint = HintWriter(store, LAYOUT, 1, 1.0, lambda: "now")
    asked: list[int] = []

    def look() -> dict[str, Any]:
        asked.append(1)
        return {"asked": len(asked)}

    for _ in range(1_000):
        hint.show(look)
    assert asked == []
    hint.update(restarts=2)
    for n in (1, 2):
        hint.write_now()
        assert (written(store).heartbeat, dict(written(store).data)) == (n, {"restarts": 2, "asked": n})


def test_a_look_that_fails_does_not_stop_the_heartbeat(store: MemoryStore, capsys: pytest.CaptureFixture[str]) -> None:
    hint = HintWriter(store, LAYOUT, 1, 1.0, lambda: "now")
    hint.update(restarts=2)
    hint.show(lambda: {}["nothing"])
    hint.write_now()
    assert written(store).heartbeat == 1 and dict(written(store).data) == {"restarts": 2}
    assert "KeyError" in capsys.readouterr().err
