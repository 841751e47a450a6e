"""The text of an error."""

from __future__ import annotations

import pytest

from tidegate.errors import TidegateError


@pytest.mark.parametrize("cause", ["is it there?", "it is gone.", "it is gone"])
def test_a_cause_of_another_program_keeps_its_own_end(cause: str) -> None:
    text = str(TidegateError("it failed", where="here", cause=cause, remedy="Look at it"))
    assert text == f"it failed [here]: {cause.rstrip('.')}{'' if cause.endswith('?') else '.'} Look at it"
