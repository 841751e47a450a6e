"""Design, loop rules: a hung slot is told from a dead one, and neither from one that is idle."""

from __future__ import annotations

from tidegate.coordinator.supervision.slot_liveness import SlotFailure, SlotLiveness

SILENT_MS, HUNG_MS = 1_000, 5_000


def liveness(hung_after_ms: int | None = HUNG_MS) -> SlotLiveness:
    return SlotLiveness(silent_after_ms=SILENT_MS, hung_after_ms=hung_after_ms)


def look(slots: SlotLiveness, start_ms: int, end_ms: int, *heard: int) -> SlotFailure | None:
    """Look every 100 ms from `start_ms` to `end_ms`; `heard` are heard before every look. The last finding."""
    found = None
    for now_ms in range(start_ms, end_ms + 1, 100):
        for slot in heard:
            slots.on_message(slot)
        found = slots.trouble(now_ms)
    return found


def test_a_slot_that_is_not_heard_is_silent() -> None:
    slots = liveness()
    slots.on_message(0)
    slots.on_message(1)
    assert look(slots, 0, 1_000, 0) is None
    assert look(slots, 1_100, 1_100, 0) == SlotFailure(1, "silent", 1_100)


def test_a_slot_that_has_never_been_heard_is_not_judged() -> None:
    assert look(liveness(), 0, 60_000) is None


def test_no_slot_is_blamed_for_a_time_in_which_the_driver_itself_was_held_up() -> None:
    """S9.1: a healthy run is not restarted because an append took long; a slot that is silent then is found later."""
    slots = liveness()
    slots.on_message(0)
    slots.on_message(1)
    assert look(slots, 0, 900, 0, 1) is None
    held_up_until_ms = 900 + 60 * SILENT_MS
    assert slots.trouble(held_up_until_ms) is None, "their messages wait in the inbox"
    assert look(slots, held_up_until_ms, held_up_until_ms + 800, 0) is None
    found = look(slots, held_up_until_ms + 900, held_up_until_ms + 1_000, 0)
    assert found is not None and (found.slot, found.what) == (1, "silent")


def test_a_heartbeat_that_waited_in_the_inbox_makes_no_slot_hung() -> None:
    """S9.1: two heartbeats that tell the same round, the second one taken long after it came."""
    slots = liveness()
    slots.on_heartbeat(0, rounds=3)
    assert slots.trouble(0) is None
    slots.on_heartbeat(0, rounds=3)
    assert slots.trouble(10 * HUNG_MS) is None
    slots.on_heartbeat(0, rounds=3)
    assert slots.trouble(10 * HUNG_MS + 100) is None


def test_a_slot_that_lives_while_its_rounds_stand_still_is_hung() -> None:
    slots = liveness()
    for now_ms in range(0, 5_501, 100):
        slots.on_heartbeat(0, rounds=3)
        found = slots.trouble(now_ms)
        # What is heard between two looks counts as of the first of them.
        assert (found is not None) == (now_ms > HUNG_MS + 100)
    assert found is not None and found.what == "hung"
    assert "slot 0 is hung" in str(found) and "slot_progress_timeout" in str(found)


def test_an_idle_slot_comes_round_and_is_not_hung() -> None:
    slots = liveness()
    for now_ms in range(0, 60_000, 100):
        slots.on_heartbeat(0, rounds=now_ms)
        assert slots.trouble(now_ms) is None


def test_a_slot_is_hung_only_while_its_loop_runs() -> None:
    """While it restores, and when it waits for its last commits, there are no rounds to count."""
    slots = liveness()
    slots.on_heartbeat(0, rounds=3)
    for now_ms in range(0, 20_000, 100):
        slots.on_heartbeat(0, rounds=None)
        assert slots.trouble(now_ms) is None
    slots.on_heartbeat(0, rounds=4)
    assert slots.trouble(20_000) is None


def test_other_messages_are_signs_of_life_but_not_of_progress() -> None:
    slots = liveness()
    slots.on_heartbeat(0, rounds=3)
    assert look(slots, 0, 5_600, 0) == SlotFailure(0, "hung", 5_500)


def test_nothing_is_expected_of_a_slot_that_is_over() -> None:
    slots = liveness()
    slots.on_heartbeat(0, rounds=3)
    slots.on_slot_ended(0)
    assert look(slots, 0, 60_000) is None


def test_without_the_option_no_slot_counts_as_hung() -> None:
    slots = liveness(hung_after_ms=None)
    for now_ms in range(0, 60_000, 100):
        slots.on_heartbeat(0, rounds=3)
        assert slots.trouble(now_ms) is None
