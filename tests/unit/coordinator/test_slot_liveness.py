"""Design, loop rules: a hung slot is told from a dead one, and neither from one that is idle."""

from __future__ import annotations

from tidegate.coordinator.liveness import SlotLiveness, SlotTrouble

SILENT_MS, HUNG_MS = 1_000, 5_000


def liveness(hung_after_ms: int | None = HUNG_MS) -> SlotLiveness:
    return SlotLiveness(silent_after_ms=SILENT_MS, hung_after_ms=hung_after_ms)


def test_a_slot_that_is_not_heard_is_silent() -> None:
    slots = liveness()
    slots.heard(0, 0)
    slots.heard(1, 0)
    slots.heard(0, 800)
    assert slots.trouble(1_000) is None
    assert slots.trouble(1_001) == SlotTrouble(1, "silent", 1_001)


def test_a_slot_that_has_never_been_heard_is_not_judged() -> None:
    assert liveness().trouble(1_000_000) is None


def test_a_slot_that_lives_while_its_rounds_stand_still_is_hung() -> None:
    slots = liveness()
    for now_ms in range(0, 5_501, 500):
        slots.beat(0, now_ms, rounds=3)
        found = slots.trouble(now_ms)
        assert (found is not None) == (now_ms > HUNG_MS)
    assert found is not None and found.what == "hung"
    assert "slot 0 is hung" in str(found) and "slot_progress_timeout" in str(found)


def test_an_idle_slot_comes_round_and_is_not_hung() -> None:
    slots = liveness()
    for now_ms in range(0, 60_000, 500):
        slots.beat(0, now_ms, rounds=now_ms)
        assert slots.trouble(now_ms) is None


def test_a_slot_is_hung_only_while_its_loop_runs() -> None:
    """While it restores, and when it waits for its last commits, there are no rounds to count."""
    slots = liveness()
    slots.beat(0, 0, rounds=3)
    for now_ms in range(0, 20_000, 500):
        slots.beat(0, now_ms, rounds=None)
        assert slots.trouble(now_ms) is None
    slots.beat(0, 20_000, rounds=4)
    assert slots.trouble(20_000) is None


def test_other_messages_are_signs_of_life_but_not_of_progress() -> None:
    slots = liveness()
    slots.beat(0, 0, rounds=3)
    for now_ms in range(0, 6_000, 500):
        slots.heard(0, now_ms)
    assert slots.trouble(6_000) == SlotTrouble(0, "hung", 5_500)


def test_nothing_is_expected_of_a_slot_that_is_over() -> None:
    slots = liveness()
    slots.beat(0, 0, rounds=3)
    slots.over(0)
    assert slots.trouble(1_000_000) is None


def test_without_the_option_no_slot_counts_as_hung() -> None:
    slots = liveness(hung_after_ms=None)
    slots.beat(0, 0, rounds=3)
    slots.beat(0, 1_000_000, rounds=3)
    assert slots.trouble(1_000_000) is None
