"""Names that differ between, or are missing in, the Airflow versions that the provider supports: 3.1, 3.2, 3.3.

Only this module handles the differences; all others import from here. It tests for the name itself, not for the version
number. docs/airflow/versions.md lists the features that are missing on an older Airflow.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.triggers.base import BaseTrigger

try:  # since 3.2
    from airflow.sdk.configuration import conf
    from airflow.sdk.exceptions import (
        AirflowException,
        AirflowFailException,
        AirflowNotFoundException,
        AirflowSensorTimeout,
        AirflowSkipException,
        TaskDeferred,
    )
except ImportError:  # 3.1
    from airflow.configuration import conf  # type: ignore[no-redef,assignment,unused-ignore]
    from airflow.exceptions import (  # type: ignore[attr-defined,no-redef,assignment,unused-ignore]
        AirflowException,
        AirflowFailException,
        AirflowNotFoundException,
        AirflowSensorTimeout,
        AirflowSkipException,
        TaskDeferred,
    )

try:  # it also masks the log lines that the task's supervisor writes
    from airflow.sdk.log import mask_secret
except ImportError:
    from airflow.sdk.execution_time.secrets_masker import mask_secret  # type: ignore[no-redef,import-not-found,unused-ignore]

__all__ = [
    "TRIGGERS_SUPPORT_ON_KILL",
    "AirflowException",
    "AirflowFailException",
    "AirflowNotFoundException",
    "AirflowSensorTimeout",
    "AirflowSkipException",
    "TaskDeferred",
    "conf",
    "mask_secret",
]

TRIGGER_TIMEOUT_MARGIN = timedelta(minutes=2)
"""Airflow's own timeout of a deferral is this much later than ours, so that ours, with its message, comes first.
Airflow's comes only if a store hangs or no triggerer runs."""
TRIGGERS_SUPPORT_ON_KILL = hasattr(BaseTrigger, "on_kill")
"""True if Airflow notifies a trigger when a user ends its deferred task: since 3.3."""


def deferrable_or_default(deferrable: bool | None) -> bool:
    """Return `deferrable`, or for None the value of Airflow's setting `[operators] default_deferrable`."""
    return conf.getboolean("operators", "default_deferrable", fallback=False) if deferrable is None else deferrable
