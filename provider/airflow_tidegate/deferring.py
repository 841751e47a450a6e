"""Whether a task waits in the triggerer, and how long Airflow lets it."""

from __future__ import annotations

from datetime import timedelta

from airflow_tidegate.version_compat import conf

TRIGGER_SLACK = timedelta(minutes=2)
"""Airflow's own timeout of a deferral lies this much behind ours, so that ours, with its message, comes first.
Airflow's comes when a store hangs, or no triggerer runs."""


def deferrable_or_default(deferrable: bool | None) -> bool:
    """`deferrable`; None: what Airflow's setting `[operators] default_deferrable` says."""
    return conf.getboolean("operators", "default_deferrable", fallback=False) if deferrable is None else deferrable
