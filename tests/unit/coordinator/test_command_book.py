"""S9.4: which commands are carried out, and that each is answered once."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.coordinator.events import CommandAnswer
from tidegate.coordinator.supervision.command_book import (
    AcceptCommand,
    CommandBook,
    CommandDecision,
    DropCommand,
    RefuseCommand,
)
from tidegate.coordinator.supervision.supervision_events import AnswerAllOpen
from tidegate.jobs.records import Command

SPEC = 3
NOW_MS = 1_800_000_000_000
LATER, EARLIER = "2030-01-01T00:00:00.000Z", "2020-01-01T00:00:00.000Z"
JOB_ENDED = AnswerAllOpen(
    CommandAnswer("", False, "job_ended", "over"), {"cancel": CommandAnswer("", True, "canceled", "cancelled")}
)


def command(
    command_id: str = "c", verb: Any = "savepoint", spec: int = SPEC, expires_at: str = LATER, **arguments: Any
) -> Command:
    return Command(command_id, verb, arguments, spec, EARLIER, expires_at, "test")


def judged(book: CommandBook, sent: Command, *, withdrawn: bool = False, answered: bool = False) -> CommandDecision:
    book.register(sent)
    return book.decide(sent.command_id, NOW_MS, withdrawn=withdrawn, answered=answered)


def code_of(verdict: CommandDecision) -> str:
    assert isinstance(verdict, RefuseCommand) and not verdict.answer.ok
    return verdict.answer.code


def test_a_command_for_this_submission_is_accepted_and_answered_once() -> None:
    """S9.4."""
    book = CommandBook(SPEC)
    assert judged(book, command()) == AcceptCommand(command())
    assert book.answer(CommandAnswer("c", True, "completed", "done"))
    assert not book.answer(CommandAnswer("c", False, "aborted", "again"))


def test_a_new_driver_answers_commands_for_an_older_submission_superseded() -> None:
    """S9.4."""
    verdict = judged(CommandBook(SPEC), command(spec=SPEC - 1))
    assert code_of(verdict) == "superseded"


def test_a_command_for_a_newer_submission_is_its_drivers() -> None:
    """S9.4."""
    book = CommandBook(SPEC)
    assert not book.register(command(spec=SPEC + 1))
    assert book.answer_all(JOB_ENDED) == []


@pytest.mark.parametrize(
    ("verb", "arguments", "good"),
    [
        ("commit", {}, True),
        ("commit", {"checkpoint_id": 7}, True),
        ("commit", {"checkpoint_id": "7"}, False),
        ("reject", {"checkpoint_id": 7}, True),
        ("reject", {"checkpoint_id": 7, "then": "replay"}, True),
        ("reject", {"checkpoint_id": 7, "then": "quarantine"}, True),
        ("reject", {"checkpoint_id": 7, "then": "wait"}, False),
        ("reject", {"checkpoint_id": 0}, False),
        ("reject", {}, False),
    ],
)
def test_a_verdict_names_a_checkpoint_and_what_a_rejection_does(verb: str, arguments: Any, good: bool) -> None:
    """S7.8."""
    verdict = judged(CommandBook(SPEC), command(verb=verb, **arguments))
    assert isinstance(verdict, AcceptCommand) if good else code_of(verdict) == "invalid_command"


def test_an_expired_command_is_refused_and_one_at_its_last_moment_is_not() -> None:
    """S9.4."""
    assert code_of(judged(CommandBook(SPEC), command(expires_at=EARLIER))) == "expired"
    last_moment = "2027-01-15T08:00:00.000Z"
    assert isinstance(judged(CommandBook(SPEC), command(expires_at=last_moment)), AcceptCommand)
    just_over = "2027-01-15T07:59:59.999Z"
    assert code_of(judged(CommandBook(SPEC), command(expires_at=just_over))) == "expired"


def test_an_expiry_without_a_zone_is_utc_wherever_the_driver_runs() -> None:
    assert isinstance(judged(CommandBook(SPEC), command(expires_at="2027-01-15T08:00:00")), AcceptCommand)


def test_a_withdrawn_command_is_dropped_without_an_answer() -> None:
    """S9.4."""
    book = CommandBook(SPEC)
    assert judged(book, command(), withdrawn=True) == DropCommand("c")
    assert not book.answer(CommandAnswer("c", True, "completed", "done"))
    assert book.answer_all(JOB_ENDED) == []


def test_a_command_withdrawn_while_it_waited_for_a_run_is_not_carried_out() -> None:
    """S9.4: it is judged again when a run is about to be given it."""
    book = CommandBook(SPEC)
    assert isinstance(judged(book, command()), AcceptCommand)
    assert book.decide("c", NOW_MS, withdrawn=True, answered=False) == DropCommand("c")


def test_a_command_that_expired_while_it_waited_for_a_run_is_refused() -> None:
    """S9.4."""
    book = CommandBook(SPEC)
    assert isinstance(judged(book, command(expires_at="2027-01-15T08:00:10.000Z")), AcceptCommand)
    assert code_of(book.decide("c", NOW_MS + 10_001, withdrawn=False, answered=False)) == "expired"


def test_a_command_that_has_a_result_is_not_carried_out_again() -> None:
    """S9.4: whoever wrote the result, and though a stale listing showed none."""
    assert judged(CommandBook(SPEC), command(), answered=True) == DropCommand("c")


def test_a_command_that_is_listed_twice_is_taken_once() -> None:
    """S9.4."""
    book = CommandBook(SPEC)
    assert book.register(command())
    assert not book.register(command())
    book.answer(CommandAnswer("c", True, "completed", "done"))
    assert not book.register(command())
    assert book.decide("c", NOW_MS, withdrawn=False, answered=False) == DropCommand("c")


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (command(verb="explode"), "unknown_verb"),
        (command(expires_at="soon"), "invalid_command"),
        (command(verb="stop", mode="Drain"), "invalid_command"),
        (command(path=7), "invalid_command"),
        (command(path=""), "invalid_command"),
    ],
)
def test_a_command_that_cannot_be_meant_is_refused_and_not_guessed_at(sent: Command, code: str) -> None:
    assert code_of(judged(CommandBook(SPEC), sent)) == code


@pytest.mark.parametrize("sent", [command(verb="stop"), command(verb="stop", mode="drain"), command(path="s3://b/x")])
def test_arguments_that_are_right_are_accepted(sent: Command) -> None:
    assert isinstance(judged(CommandBook(SPEC), sent), AcceptCommand)


def test_the_end_answers_each_open_command_by_its_verb() -> None:
    """S9.4."""
    book = CommandBook(SPEC)
    for sent in (command("sp"), command("c1", "cancel"), command("c2", "cancel"), command("old", spec=1)):
        book.register(sent)
    codes = {answer.request_id: answer.code for answer in book.answer_all(JOB_ENDED)}
    assert codes == {"sp": "job_ended", "c1": "canceled", "c2": "canceled", "old": "superseded"}
    assert book.answer_all(JOB_ENDED) == []


def test_a_fenced_driver_leaves_everything_open_to_the_newer_one() -> None:
    """S9.2, S9.4."""
    book = CommandBook(SPEC)
    book.register(command())
    book.discard()
    assert not book.register(command("late"))
    assert not book.answer(CommandAnswer("c", True, "completed", "done"))
    assert book.answer_all(JOB_ENDED) == []


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["found", "judge", "judge withdrawn", "judge answered", "answer", "answer all", "abandon"]),
        st.sampled_from(["a", "b"]),
        st.integers(SPEC - 1, SPEC + 1),
    ),
    max_size=30,
)


@given(STEPS)
def test_whatever_happens_no_command_is_answered_twice_or_carried_out_after_its_end(
    steps: list[tuple[str, str, int]],
) -> None:
    """S9.4."""
    book = CommandBook(SPEC)
    answered: list[str] = []
    owed: set[str] = set()
    for what, command_id, spec in steps:
        if what == "found" and book.register(command(command_id, spec=spec)):
            owed.add(command_id)
        elif what.startswith("judge"):
            verdict = book.decide(
                command_id, NOW_MS, withdrawn=what == "judge withdrawn", answered=what == "judge answered"
            )
            if isinstance(verdict, AcceptCommand):
                assert command_id in owed and verdict.command.spec == SPEC and what == "judge"
            else:
                answered += [command_id] if isinstance(verdict, RefuseCommand) else []
                owed.discard(command_id)
        elif what == "answer":
            is_first = book.answer(CommandAnswer(command_id, True, "completed", ""))
            assert is_first == (command_id in owed)
            answered += [command_id] if is_first else []
            owed.discard(command_id)
        elif what == "answer all":
            ids = [answer.request_id for answer in book.answer_all(JOB_ENDED)]
            assert set(ids) == owed
            answered += ids
            owed.clear()
        elif what == "abandon":
            book.discard()
            owed.clear()
    assert len(answered) == len(set(answered))
