"""Where an upgrade is: a function of the job directory."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest

from airflow_tidegate.operators.upgrade_steps import UpgradeFacts, UpgradeStep, next_step
from tidegate.jobs.status import JobStatus

RUNNING = UpgradeFacts(newest=3, status=JobStatus.RUNNING, before=3)
STOPPED = replace(RUNNING, status=JobStatus.STOPPED, savepoint="sp")
NEW = replace(STOPPED, newest=4, new=4, status=JobStatus.RUNNING)
OLD = replace(NEW, newest=5, old=5)


@pytest.mark.parametrize(
    ("facts", "step"),
    [
        (RUNNING, UpgradeStep.SUSPEND),
        (replace(RUNNING, status=JobStatus.RESTARTING), UpgradeStep.SUSPEND),
        (replace(RUNNING, status=JobStatus.STOPPING), UpgradeStep.SUSPEND),
        (replace(RUNNING, status=JobStatus.FINISHED), UpgradeStep.OVER),
        (replace(RUNNING, status=JobStatus.FAILED), UpgradeStep.OVER),
        (replace(STOPPED, savepoint=""), UpgradeStep.OVER),
        (replace(STOPPED, drained=True), UpgradeStep.DRAINED),
        (STOPPED, UpgradeStep.START_NEW),
        (replace(STOPPED, refused=True), UpgradeStep.RESTORE_OLD),
        (replace(NEW, status=JobStatus.CREATED), UpgradeStep.AWAIT_NEW),
        (NEW, UpgradeStep.AWAIT_NEW),
        (replace(NEW, given_up=True), UpgradeStep.END_NEW),
        (replace(NEW, given_up=True, status=JobStatus.CREATED), UpgradeStep.END_NEW),
        (replace(NEW, has_checkpoint=True), UpgradeStep.UPGRADED),
        (replace(NEW, has_checkpoint=True, status=JobStatus.STOPPED), UpgradeStep.UPGRADED),
        (replace(NEW, status=JobStatus.FINISHED), UpgradeStep.UPGRADED),
        (replace(NEW, status=JobStatus.FAILED), UpgradeStep.RESTORE_OLD),
        (replace(NEW, status=JobStatus.CANCELED, given_up=True), UpgradeStep.RESTORE_OLD),
        (replace(NEW, has_checkpoint=True, given_up=True), UpgradeStep.END_NEW),
        (replace(NEW, has_checkpoint=True, given_up=True, status=JobStatus.CANCELED), UpgradeStep.RESUME_NEW),
        (replace(NEW, newest=5, new=5, resumed=True, status=JobStatus.CREATED), UpgradeStep.AWAIT_NEW),
        (replace(NEW, newest=5, new=5, resumed=True, has_checkpoint=True), UpgradeStep.UPGRADED),
        (replace(OLD, status=JobStatus.CREATED), UpgradeStep.AWAIT_OLD),
        (replace(OLD, status=JobStatus.FAILED), UpgradeStep.AWAIT_OLD),
        (OLD, UpgradeStep.ROLLED_BACK),
        (replace(OLD, status=JobStatus.FINISHED), UpgradeStep.ROLLED_BACK),
        (replace(OLD, new=None, newest=5), UpgradeStep.ROLLED_BACK),
        (replace(NEW, newest=9), UpgradeStep.TAKEN_OVER),
        (replace(OLD, newest=9), UpgradeStep.TAKEN_OVER),
    ],
    ids=str,
)
def test_the_next_step(facts: UpgradeFacts, step: UpgradeStep) -> None:
    assert next_step(facts) is step


def all_facts() -> list[UpgradeFacts]:
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
            assert next_step(facts) is not UpgradeStep.RESTORE_OLD, facts


def test_nothing_is_submitted_while_a_version_may_run() -> None:
    submitting = (UpgradeStep.START_NEW, UpgradeStep.RESTORE_OLD, UpgradeStep.RESUME_NEW)
    for facts in all_facts():
        if next_step(facts) in submitting:
            assert facts.status.is_terminal, facts
