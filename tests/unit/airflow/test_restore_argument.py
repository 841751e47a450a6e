"""What `from_` of a restore may be."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_tidegate.operators.restore import restore_from
from tidegate.contract.errors import OptionError
from tidegate.contract.records import RestoreFrom


def meaning(value: Any) -> RestoreFrom:
    return restore_from(value, allow_non_restored_state=False, on_committed_after="refuse")


def test_a_drained_snapshot_is_asked_for_by_name() -> None:
    found = restore_from("sp", allow_non_restored_state=False, on_committed_after="refuse", allow_drained=True)
    assert found.allow_drained and not meaning("sp").allow_drained


@pytest.mark.parametrize(
    ("value", "kind", "path", "checkpoint_id"),
    [
        ("latest", "latest", None, None),
        (12, "checkpoint", None, 12),
        ("12", "checkpoint", None, 12),
        ("s3://b/savepoints/s-1", "savepoint", "s3://b/savepoints/s-1", None),
        ("/srv/s-1", "savepoint", "/srv/s-1", None),
        ({"path": "/srv/s-1", "checkpoint_id": 3}, "savepoint", "/srv/s-1", None),
    ],
)
def test_text_number_and_xcom_name_a_snapshot(
    value: Any, kind: str, path: str | None, checkpoint_id: int | None
) -> None:
    found = meaning(value)
    assert (found.kind, found.path, found.checkpoint_id) == (kind, path, checkpoint_id)


@pytest.mark.parametrize("value", [None, "", "None", {}, {"path": None}], ids=repr)
def test_an_xcom_that_names_no_snapshot_is_refused(value: Any) -> None:
    with pytest.raises(OptionError, match="no snapshot is named"):
        meaning(value)
