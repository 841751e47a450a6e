"""Metadata of the provider for Airflow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tidegate.jobs.launch import launcher_registry

INTEGRATION = "tidegate"
OPERATORS = (
    "start",
    "restore",
    "snapshots",
    "stop",
    "verdicts",
    "supervise",
    "fork",
    "upgrade",
    "check_restore",
    "rescale",
    "collect_garbage",
    "delete_savepoint",
)
"""Modules with operators, below `airflow_tidegate.operators`. SENSORS and TRIGGERS list modules likewise."""
SENSORS = ("checkpoint", "end_of_data", "job_status", "snapshot_expiry", "staged_checkpoint", "watermark")
TRIGGERS = ("event_triggers", "job_triggers")


def get_provider_info() -> dict[str, Any]:
    """Return the metadata for the entry point `apache_airflow_provider`; valid against Airflow's
    provider_info.schema.json."""
    return {
        "package-name": "tidegate",
        "name": "tidegate",
        "description": "Barrier snapshots for PySpark: start, checkpoint, savepoint, stop, drain and restore "
        "stateful Spark jobs as Airflow tasks.",
        "integrations": [{"integration-name": INTEGRATION, "tags": ["service"]}],
        "hooks": [{"integration-name": INTEGRATION, "python-modules": ["airflow_tidegate.hooks.tidegate"]}],
        "operators": _modules("operators", OPERATORS),
        "sensors": _modules("sensors", SENSORS),
        "triggers": _modules("triggers", TRIGGERS),
        "extra-links": ["airflow_tidegate.links.TidegateJobLink", "airflow_tidegate.links.TidegateSparkUiLink"],
        "config": {
            "tidegate": {
                "description": "The page of jobs in Airflow's UI.",
                "options": {
                    "connections": {
                        "description": "Ids of tidegate connections whose jobs the page shows, separated by commas.",
                        "version_added": "0.1.0",
                        "type": "string",
                        "example": "tidegate_default,tidegate_reports",
                        "default": "tidegate_default",
                    }
                },
            }
        },
        "connection-types": [
            {
                "connection-type": "tidegate",
                "hook-name": "tidegate",
                "hook-class-name": "airflow_tidegate.hooks.tidegate.TidegateHook",
                "conn-fields": _connection_fields(),
                "ui-field-behaviour": {
                    "hidden-fields": ["schema", "login", "password", "port"],
                    "relabeling": {"host": "Job root"},
                    "placeholders": {"host": "/srv/tidegate  or  s3://bucket/tidegate"},
                },
            }
        ],
    }


def _modules(package: str, names: Sequence[str]) -> list[dict[str, Any]]:
    modules = [f"airflow_tidegate.{package}.{name}" for name in names]
    return [{"integration-name": INTEGRATION, "python-modules": modules}]


def _connection_fields() -> dict[str, Any]:
    text = {"type": ["string", "null"]}
    kinds = launcher_registry.connection_kinds()
    launchers = {"type": ["string", "null"], "enum": [*kinds, None], "default": kinds[0]}
    return {
        "launcher": {
            "label": "Launcher",
            "schema": launchers,
            "description": f"The launcher of drivers: {', '.join(kinds)}.",
        },
        "master": {
            "label": "Spark master",
            "schema": text,
            "description": "local[N], spark://host:port, yarn, or k8s://https://host:port; default local[*].",
        },
        "spark_conf": {
            "label": "Spark settings",
            "schema": text,
            "description": "JSON object of Spark properties; values may be secret:env/NAME or secret:file/PATH.",
        },
        "storage_options": {
            "label": "Storage options",
            "schema": text,
            "description": "JSON object of fsspec options; secrets as secret:env/NAME or secret:file/PATH.",
        },
        "python": {
            "label": "Python interpreter",
            "schema": text,
            "description": "Interpreter of the drivers, with tidegate[spark]; default: the Airflow worker's own. "
            "With yarn and kubernetes: its path inside the container.",
        },
        "spark_submit": {
            "label": "spark-submit",
            "schema": text,
            "description": "Path of spark-submit; default: from SPARK_HOME, else from the PATH.",
        },
        **{
            setting.name: {"label": setting.label, "schema": text, "description": setting.description}
            for setting in launcher_registry.settings()
        },
    }
