"""What has another place, or is missing, in one of the Airflow versions that the provider runs on: 3.1, 3.2, 3.3.

The one module that looks for it; all others import from here. It asks for the thing itself, not for the version number.
What users lose on an older Airflow is in docs/airflow/versions.md.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.triggers.base import BaseTrigger

TRIGGER_TIMEOUT_MARGIN = timedelta(minutes=2)
"""Airflow's own timeout of a deferral lies this much behind ours, so that ours, with its message, comes first.
Airflow's comes when a store hangs, or no triggerer runs."""


def deferrable_or_default(deferrable: bool | None) -> bool:
    """`deferrable`; None: what Airflow's setting `[operators] default_deferrable` says."""
    return conf.getboolean("operators", "default_deferrable", fallback=False) if deferrable is None else deferrable


try:  # since 3.2
    from airflow.sdk.configuration import conf
    from airflow.sdk.exceptions import (
        AirflowException,
        AirflowFailException,
        AirflowSensorTimeout,
        AirflowSkipException,
        TaskDeferred,
    )
except ImportError:  # 3.1
    from airflow.configuration import conf  # type: ignore[no-redef,assignment,unused-ignore]
    from airflow.exceptions import (  # type: ignore[attr-defined,no-redef,assignment,unused-ignore]
        AirflowException,
        AirflowFailException,
        AirflowSensorTimeout,
        AirflowSkipException,
        TaskDeferred,
    )

__all__ = [
    "TRIGGERS_SUPPORT_ON_KILL",
    "AirflowException",
    "AirflowFailException",
    "AirflowSensorTimeout",
    "AirflowSkipException",
    "TaskDeferred",
    "conf",
]

TRIGGERS_SUPPORT_ON_KILL = hasattr(BaseTrigger, "on_kill")
"""A trigger is told when a user ends its deferred task: since 3.3. Before, such a task ends without a word to it."""
