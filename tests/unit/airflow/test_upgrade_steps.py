"""Where an upgrade is: a function of the job directory."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest

from airflow_tidegate.operators.upgrade_steps import Facts, Step, next_step
from tidegate.jobs.status import JobStatus

RUNNING = Facts(newest=3, status=JobStatus.RUNNING, before=3)
STOPPED = replace(RUNNING, status=JobStatus.STOPPED, savepoint="sp")
NEW = replace(STOPPED, newest=4, new=4, status=JobStatus.RUNNING)
OLD = replace(NEW, newest=5, old=5)


@pytest.mark.parametrize(
    ("facts", "step"),
    [
        (RUNNING, Step.SUSPEND),
        (replace(RUNNING, status=JobStatus.RESTARTING), Step.SUSPEND),
        (replace(RUNNING, status=JobStatus.STOPPING), Step.SUSPEND),
        (replace(RUNNING, status=JobStatus.FINISHED), Step.OVER),
        (replace(RUNNING, status=JobStatus.FAILED), Step.OVER),
        (replace(STOPPED, savepoint=""), Step.OVER),
        (replace(STOPPED, drained=True), Step.DRAINED),
        (STOPPED, Step.START_NEW),
        (replace(STOPPED, refused=True), Step.RESTORE_OLD),
        (replace(NEW, status=JobStatus.CREATED), Step.AWAIT_NEW),
        (NEW, Step.AWAIT_NEW),
        (replace(NEW, given_up=True), Step.END_NEW),
        (replace(NEW, given_up=True, status=JobStatus.CREATED), Step.END_NEW),
        (replace(NEW, has_checkpoint=True), Step.UPGRADED),
        (replace(NEW, has_checkpoint=True, status=JobStatus.STOPPED), Step.UPGRADED),
        (replace(NEW, status=JobStatus.FINISHED), Step.UPGRADED),
        (replace(NEW, status=JobStatus.FAILED), Step.RESTORE_OLD),
        (replace(NEW, status=JobStatus.CANCELED, given_up=True), Step.RESTORE_OLD),
        (replace(NEW, has_checkpoint=True, given_up=True), Step.END_NEW),
        (replace(NEW, has_checkpoint=True, given_up=True, status=JobStatus.CANCELED), Step.RESUME_NEW),
        (replace(NEW, newest=5, new=5, resumed=True, status=JobStatus.CREATED), Step.AWAIT_NEW),
        (replace(NEW, newest=5, new=5, resumed=True, has_checkpoint=True), Step.UPGRADED),
        (replace(OLD, status=JobStatus.CREATED), Step.AWAIT_OLD),
        (replace(OLD, status=JobStatus.FAILED), Step.AWAIT_OLD),
        (OLD, Step.ROLLED_BACK),
        (replace(OLD, status=JobStatus.FINISHED), Step.ROLLED_BACK),
        (replace(OLD, new=None, newest=5), Step.ROLLED_BACK),
        (replace(NEW, newest=9), Step.TAKEN_OVER),
        (replace(OLD, newest=9), Step.TAKEN_OVER),
    ],
    ids=str,
)
def test_the_next_step(facts: Facts, step: Step) -> None:
    assert next_step(facts) is step


def all_facts() -> list[Facts]:
    flags = list(itertools.product((False, True), repeat=4))
    places: list[dict[str, Any]] = [{}, {"newest": 4, "new": 4}, {"newest": 5, "new": 4, "old": 5}]
    return [
        replace(
            RUNNING, status=status, savepoint=savepoint, resumed=a, has_checkpoint=b, given_up=c, refused=d, **place
        )
        for status in JobStatus
        for savepoint in ("", "sp")
        for place in places
        for a, b, c, d in flags
    ]


def test_what_has_completed_a_checkpoint_is_never_gone_back_from() -> None:
    """S9.3: it may have committed."""
    for facts in all_facts():
        if facts.new is not None and facts.old is None and facts.has_checkpoint:
            assert next_step(facts) is not Step.RESTORE_OLD, facts


def test_nothing_is_submitted_while_a_version_may_run() -> None:
    submitting = (Step.START_NEW, Step.RESTORE_OLD, Step.RESUME_NEW)
    for facts in all_facts():
        if next_step(facts) in submitting:
            assert facts.status.is_terminal, facts
