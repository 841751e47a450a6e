"""Decide which commands a driver carries out and which it refuses; each is answered once (S9.4). Pure.

A command is checked twice: when it arrives, and again right before a run receives it, because it may have waited for
slots in between. After that a withdrawal has no effect: a command that was started gets a result, and a command that
was withdrawn before gets none. Results are create-only, so that a result always records the outcome of its command,
whatever other files exist.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from tidegate.clock import parse_iso
from tidegate.coordinator.events import CommandAnswer
from tidegate.coordinator.supervision.supervision_events import AnswerAllOpen
from tidegate.errors import OptionError
from tidegate.jobs.records import Command
from tidegate.jobs.stop_outcomes import stop_arguments

VERBS = frozenset({"checkpoint", "savepoint", "stop", "cancel", "commit", "reject"})
"""Commands that this version understands."""
THEN_VALUES = ("stop", "replay", "quarantine")
"""Effects that a rejection can have on the job."""


@dataclass(frozen=True, slots=True)
class AcceptCommand:
    """Carry out the command; it needs an answer."""

    command: Command


@dataclass(frozen=True, slots=True)
class RefuseCommand:
    """Write this result; the command needs no further answer."""

    answer: CommandAnswer


@dataclass(frozen=True, slots=True)
class DropCommand:
    """Do nothing and do not answer: the command was withdrawn, or is already answered."""

    command_id: str


CommandDecision: TypeAlias = AcceptCommand | RefuseCommand | DropCommand


class CommandBook:
    """The commands that one driver has found.

    Call order for each command: `register`, `decide` any number of times, `answer` once. Not safe from several threads.
    """

    def __init__(self, spec: int) -> None:
        """Args: spec: number of the submission that the driver runs."""
        self._spec = spec
        self._open: dict[str, Command] = {}
        self._known: set[str] = set()
        self._abandoned = False

    def register(self, command: Command) -> bool:
        """Register a command from the job directory. Return False if this driver does not handle it.

        That is so if the command is already known, if it is for a newer submission, whose driver may already be
        running, or if a newer generation owns the job.
        """
        if self._abandoned or command.spec > self._spec or command.command_id in self._known:
            return False
        self._known.add(command.command_id)
        self._open[command.command_id] = command
        return True

    def unreadable(self, command_id: str, spec: int | None, problem: str) -> CommandAnswer | None:
        """Return the answer to a command file that this driver cannot read, or None if it must not be answered.

        `spec`: the submission that the file is for, if known. The driver of a newer submission may be able to read it.
        """
        if self._abandoned or command_id in self._known or (spec is not None and spec > self._spec):
            return None
        self._known.add(command_id)
        return CommandAnswer(command_id, False, "invalid_command", f"the command's record cannot be read: {problem}")

    def decide(
        self, command_id: str, now_ms: int, *, withdrawn: bool, answered: bool, begun: bool = False
    ) -> CommandDecision:
        """Decide what to do with a registered command.

        Args:
            now_ms: wall clock, milliseconds since the epoch; used only for the expiry.
            withdrawn: a withdrawal of the command exists.
            answered: a result of the command exists, from this driver or another.
            begun: a run has already received the command, and receives it again. It does not expire any more.
        """
        command = self._open.get(command_id)
        if command is None:
            return DropCommand(command_id)
        if withdrawn or answered:
            del self._open[command_id]
            return DropCommand(command_id)
        # A started command must get the result of its run, so that expiry and superseding no longer apply (S9.4).
        refusal = self._refusal(command, now_ms) if not begun else None
        if refusal is None:
            return AcceptCommand(command)
        del self._open[command_id]
        return RefuseCommand(refusal)

    def answer(self, answer: CommandAnswer) -> bool:
        """Return whether this is the first answer and must be written. Later answers change nothing."""
        return self._open.pop(answer.request_id, None) is not None

    def answer_all(self, farewell: AnswerAllOpen) -> list[CommandAnswer]:
        """Return the answers to all open commands."""
        waiting, self._open = self._open, {}
        return [self._superseded(command) or farewell.to(command) for command in waiting.values()]

    def discard(self) -> None:
        """Forget open commands: a newer generation owns the job and answers them (S9.2)."""
        self._abandoned = True
        self._open.clear()

    def _refusal(self, command: Command, now_ms: int) -> CommandAnswer | None:
        superseded = self._superseded(command)
        if superseded is not None:
            return superseded
        command_id = command.command_id
        if command.verb not in VERBS:
            text = (
                f"the driver does not know the command {command.verb!r}. Use the same tidegate version to send "
                "commands and to run the driver"
            )
            return CommandAnswer(command_id, False, "unknown_verb", text)
        try:
            expires_s = parse_iso(command.expires_at).timestamp()
        except ValueError as error:
            return CommandAnswer(
                command_id, False, "invalid_command", f"expires_at of the command is not a valid time: {error}"
            )
        problem = _problem(command)
        if problem is not None:
            return CommandAnswer(command_id, False, "invalid_command", problem)
        if expires_s * 1000 < now_ms:
            text = f"the command expired at {command.expires_at} before the job could receive it. Send it again"
            return CommandAnswer(command_id, False, "expired", text)
        return None

    def _superseded(self, command: Command) -> CommandAnswer | None:
        if command.spec == self._spec:
            return None
        text = f"the command is for submission {command.spec}, but the driver runs submission {self._spec}"
        return CommandAnswer(command.command_id, False, "superseded", text)


def _problem(command: Command) -> str | None:
    """Return what is wrong with the arguments, or None. Our own clients send valid ones."""
    path = command.arguments.get("path")
    if command.verb == "stop":
        try:
            stop_arguments(command.arguments)
        except OptionError as error:
            return str(error)
    if command.verb in ("commit", "reject"):
        return _verdict_problem(command)
    if path is not None and not (isinstance(path, str) and path):
        return f"the argument path is {path!r}, but must be the text of a folder or URL"
    return None


def _verdict_problem(command: Command) -> str | None:
    n, then = command.arguments.get("checkpoint_id"), command.arguments.get("then", THEN_VALUES[0])
    # `bool` is a subclass of `int` in Python, so that JSON `true` would pass as checkpoint 1.
    if not (isinstance(n, int) and not isinstance(n, bool) and n > 0) and (n is not None or command.verb == "reject"):
        return f"the argument checkpoint_id is {n!r}, but must be the number of a checkpoint, from 1"
    if command.verb == "reject" and then not in THEN_VALUES:
        return f"then={then!r} is not valid. Use one of {', '.join(THEN_VALUES)}"
    return None
