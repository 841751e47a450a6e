"""What a restore may be told: `from_`, the age, and all of it as text that a template was rendered to."""

from __future__ import annotations

from typing import Any, cast

import pytest
from scripted_job import Job, ScriptedDriver

from airflow_tidegate.operators.restore import TidegateRestoreJobOperator, restore_from
from airflow_tidegate.version_compat import AirflowException, AirflowFailException
from tidegate.errors import OptionError
from tidegate.jobs.records import RestoreFrom


def meaning(value: Any) -> RestoreFrom:
    return restore_from(value, allow_non_restored_state=False, on_committed_after="refuse")


def test_a_drained_snapshot_is_asked_for_by_name() -> None:
    found = restore_from("sp", allow_non_restored_state=False, on_committed_after="refuse", allow_drained=True)
    assert found.allow_drained and not meaning("sp").allow_drained
    claimed = restore_from("sp", allow_non_restored_state=False, on_committed_after="refuse", claim_mode="claim")
    assert (claimed.claim_mode, found.claim_mode) == ("claim", "no_claim")


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
    with pytest.raises(OptionError, match="the snapshot to restore is missing"):
        meaning(value)


def stopped(job: Job) -> ScriptedDriver:
    """A job with one checkpoint, completed at NOW, that has stopped; every further launch runs."""
    job.submit()
    driver = ScriptedDriver(job.client)
    driver.checkpoint(1)
    driver.status("STOPPED", stop={"outcome": "committed", "mode": "suspend", "checkpoint_id": 1, "path": "p"})
    job.on_launch = lambda spec, attempt: ScriptedDriver(job.client, spec, attempt).status("RUNNING")
    return driver


@pytest.mark.parametrize("from_", ["latest", 1, {"path": "the checkpoint"}], ids=repr)
def test_a_snapshot_that_is_too_old_is_refused_before_anything_is_submitted(job: Job, from_: Any) -> None:
    """S9.3: the age counts from the recorded completion; what it is, and what to do, is told."""
    path = stopped(job).client.view().completed[0].path
    from_ = {"path": path} if isinstance(from_, dict) else from_
    restore = TidegateRestoreJobOperator(task_id="r", job_id="j1", from_=from_, max_snapshot_age="1 d")
    with pytest.raises(AirflowException, match=r"checkpoint 1 is \d+ d .*old, but must be at most 1 d old") as caught:
        restore.execute(job.context("r"))
    assert "greater age" in str(caught.value)
    assert len(job.client.specs()) == 1 and job.launches == []


def test_a_snapshot_that_is_young_enough_is_restored(job: Job) -> None:
    stopped(job)
    restore = TidegateRestoreJobOperator(task_id="r", job_id="j1", max_snapshot_age="36500 d")
    assert restore.execute(job.context("r"))["spec"] == 2


@pytest.mark.parametrize(
    ("rendered", "words"),
    [
        ({"max_snapshot_age": 3600}, "max_snapshot_age"),
        ({"max_snapshot_age": "3600"}, "max_snapshot_age"),
        ({"allow_drained": "perhaps"}, "allow_drained"),
        ({"allow_non_restored_state": ""}, "allow_non_restored_state"),
    ],
    ids=repr,
)
def test_what_is_rendered_to_nonsense_is_refused_at_once(job: Job, rendered: dict[str, Any], words: str) -> None:
    stopped(job)
    with pytest.raises(AirflowFailException, match=words):
        TidegateRestoreJobOperator(task_id="r", job_id="j1", **rendered).execute(job.context("r"))
    assert len(job.client.specs()) == 1


def test_everything_a_restore_is_told_may_be_a_template(job: Job) -> None:
    """Airflow renders to text, booleans and ages, too."""
    stopped(job)
    params = {"job": "j1", "from": "latest", "drained": True, "age": "36500 d", "policy": "savepoint_then_stop"}
    restore = TidegateRestoreJobOperator(
        task_id="r",
        job_id="{{ params.job }}",
        from_="{{ params['from'] }}",
        allow_drained="{{ params.drained }}",
        allow_non_restored_state="{{ not params.drained }}",
        max_snapshot_age="{{ params.age }}",
        on_committed_after="refuse",
        on_kill="{{ params.policy }}",
    )
    context = {**job.context("r"), "params": params}
    restore.render_template_fields(cast(Any, context))
    restore.execute(context)
    made = job.client.specs()[1].restore
    assert made == RestoreFrom(kind="latest", allow_drained=True, allow_non_restored_state=False)
    assert restore.kill_policy == "savepoint_then_stop"


def test_an_xcom_with_an_id_only_names_the_checkpoint() -> None:
    assert meaning({"checkpoint_id": 7, "kind": "checkpoint"}) == RestoreFrom("checkpoint", checkpoint_id=7)
