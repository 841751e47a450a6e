"""The inputs of sources are checked before a fresh start: the command line refuses, a driver waits (S9.1)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tidegate.coordinator.recovery.fresh_start import check_first_run, check_inputs
from tidegate.errors import OutageError, PipelineError, StoreError, TidegateError
from tidegate.jobs.records import RestoreFrom


def graph(*errors: Exception | None) -> Any:
    """A graph of sources whose check raises these errors, by number."""

    def check(error: Exception | None) -> Any:
        def raising() -> None:
            if error is not None:
                raise error

        return SimpleNamespace(check_fresh_start=raising, describe=lambda: "Topic()")

    return SimpleNamespace(
        nodes=[SimpleNamespace(uid=f"s{n}", source=check(error), sink=None) for n, error in enumerate(errors)]
    )


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (OutageError("no answer"), OutageError),
        (OSError("no route"), StoreError),
        (PipelineError("no topic"), PipelineError),
    ],
)
def test_the_command_line_refuses_an_input_that_it_cannot_reach(error: Exception, kind: type[TidegateError]) -> None:
    with pytest.raises(kind, match=str(error)):
        check_inputs(graph(None, error))


def test_a_driver_waits_for_a_system_and_still_refuses_a_wrong_input() -> None:
    found: list[tuple[str, str]] = []

    def note(uid: str, error: Exception) -> None:
        found.append((uid, str(error)))

    check_inputs(graph(OutageError("no answer"), None, OSError("no route")), note)
    assert found == [("s0", "no answer"), ("s2", "no route")]
    with pytest.raises(PipelineError, match="no topic"):
        check_inputs(graph(PipelineError("no topic")), note)


@pytest.mark.parametrize("is_fork", [False, True])
def test_only_a_start_without_positions_checks_them(is_fork: bool) -> None:
    """The offsets of `start=` mean nothing for a fork, which has positions."""
    restore = RestoreFrom("latest", fork_of="other") if is_fork else None
    spec: Any = SimpleNamespace(number=1, job_id="j", lineage="l", restore=restore)
    found: list[str] = []
    check_first_run(graph(OutageError("no answer")), spec, [spec], [], 1, lambda uid, _: found.append(uid))
    assert found == ([] if is_fork else ["s0"])
