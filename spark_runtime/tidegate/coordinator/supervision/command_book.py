"""Which commands a driver carries out, which it refuses, and that it answers each once (S9.4). Pure.

A command is judged twice: when it is found, and again when a run is about to be given it, since it may have waited
for slots meanwhile. From then on a withdrawal changes nothing: a command that was begun gets a result, one that was
withdrawn before gets none. Results are create-only, so whoever finds one knows what became of the command, whatever
else lies beside it.
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
"""What this version can be asked for."""
THEN_VALUES = ("stop", "replay", "quarantine")
"""What a rejection may do with the job."""


@dataclass(frozen=True, slots=True)
class AcceptCommand:
    """Carry it out; an answer is owed."""

    command: Command


@dataclass(frozen=True, slots=True)
class RefuseCommand:
    """Write this result; nothing is owed any more."""

    answer: CommandAnswer


@dataclass(frozen=True, slots=True)
class DropCommand:
    """Do nothing, answer nothing: it was withdrawn, or is answered."""

    command_id: str


Verdict: TypeAlias = AcceptCommand | RefuseCommand | DropCommand


class CommandBook:
    """The commands one driver has found. Call order for each: `found`, `judge` any number of times, `answer` once.

    Not safe from several threads.
    """

    def __init__(self, spec: int) -> None:
        """Args: spec: number of the submission that the driver runs."""
        self._spec = spec
        self._open: dict[str, Command] = {}
        self._known: set[str] = set()
        self._abandoned = False

    def register(self, command: Command) -> bool:
        """Take a command that lies in the job directory. False: it is none of ours (it is known, or for a newer
        submission, whose driver may be there already), or nothing is any more."""
        if self._abandoned or command.spec > self._spec or command.command_id in self._known:
            return False
        self._known.add(command.command_id)
        self._open[command.command_id] = command
        return True

    def unreadable(self, command_id: str, spec: int | None, problem: str) -> CommandAnswer | None:
        """The answer to a file that lies there as a command and is none, as far as this driver knows. None: nothing is
        to be answered. `spec`: the submission it was meant for, if that can be told: a newer one's driver may know
        better."""
        if self._abandoned or command_id in self._known or (spec is not None and spec > self._spec):
            return None
        self._known.add(command_id)
        return CommandAnswer(command_id, False, "invalid_command", f"the command cannot be read: {problem}")

    def decide(self, command_id: str, now_ms: int, *, withdrawn: bool, answered: bool, begun: bool = False) -> Verdict:
        """What to do with a command that was found.

        Args:
            now_ms: wall clock, milliseconds since the epoch; only the expiry is compared with it.
            withdrawn: its withdrawal is there.
            answered: its result is there, of this driver or another.
            begun: a run has had it, and is to have it once more: it does not expire any more.
        """
        command = self._open.get(command_id)
        if command is None:
            return DropCommand(command_id)
        if withdrawn or answered:
            del self._open[command_id]
            return DropCommand(command_id)
        refusal = self._refusal(command, now_ms) if not begun else None
        if refusal is None:
            return AcceptCommand(command)
        del self._open[command_id]
        return RefuseCommand(refusal)

    def answer(self, answer: CommandAnswer) -> bool:
        """Whether this answer is the first, and is to be written; a second one changes nothing."""
        return self._open.pop(answer.request_id, None) is not None

    def answer_all(self, farewell: AnswerAllOpen) -> list[CommandAnswer]:
        """The answers to whatever is open."""
        waiting, self._open = self._open, {}
        return [self._superseded(command) or farewell.to(command) for command in waiting.values()]

    def discard(self) -> None:
        """A newer generation reigns: what is open is its to answer (S9.2)."""
        self._abandoned = True
        self._open.clear()

    def _refusal(self, command: Command, now_ms: int) -> CommandAnswer | None:
        superseded = self._superseded(command)
        if superseded is not None:
            return superseded
        command_id = command.command_id
        if command.verb not in VERBS:
            return CommandAnswer(command_id, False, "unknown_verb", f"this version has no verb {command.verb!r}")
        try:
            expires_s = parse_iso(command.expires_at).timestamp()
        except ValueError as error:
            return CommandAnswer(command_id, False, "invalid_command", f"expires_at is no time: {error}")
        problem = _problem(command)
        if problem is not None:
            return CommandAnswer(command_id, False, "invalid_command", problem)
        if expires_s * 1000 < now_ms:
            text = f"the command expired at {command.expires_at} before the job could take it; send it again"
            return CommandAnswer(command_id, False, "expired", text)
        return None

    def _superseded(self, command: Command) -> CommandAnswer | None:
        if command.spec == self._spec:
            return None
        text = f"meant for submission {command.spec}, this driver runs submission {self._spec}"
        return CommandAnswer(command.command_id, False, "superseded", text)


def _problem(command: Command) -> str | None:
    """What is wrong with the arguments; a client of ours never sends these."""
    path = command.arguments.get("path")
    if command.verb == "stop":
        try:
            stop_arguments(command.arguments)
        except OptionError as error:
            return str(error)
    if command.verb in ("commit", "reject"):
        return _verdict_problem(command)
    if path is not None and not (isinstance(path, str) and path):
        return f"path {path!r} is not a folder or URL"
    return None


def _verdict_problem(command: Command) -> str | None:
    n, then = command.arguments.get("checkpoint_id"), command.arguments.get("then", THEN_VALUES[0])
    if not (isinstance(n, int) and not isinstance(n, bool) and n > 0) and (n is not None or command.verb == "reject"):
        return f"checkpoint_id {n!r} is not the number of a checkpoint"
    if command.verb == "reject" and then not in THEN_VALUES:
        return f"{then!r} is not what a rejection can do; use {', '.join(THEN_VALUES)}"
    return None
