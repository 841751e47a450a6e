"""What Airflow asks a provider about itself."""

from __future__ import annotations

from typing import Any

INTEGRATION = "tidegate"


def get_provider_info() -> dict[str, Any]:
    """Metadata for the entry point `apache_airflow_provider`; valid against Airflow's provider_info.schema.json."""
    return {
        "package-name": "tidegate",
        "name": "tidegate",
        "description": "Barrier snapshots for PySpark: start, checkpoint, savepoint, stop, drain and restore "
        "stateful Spark jobs as Airflow tasks.",
        "integrations": [{"integration-name": INTEGRATION, "tags": ["service"]}],
        "hooks": [{"integration-name": INTEGRATION, "python-modules": ["airflow_tidegate.hooks.tidegate"]}],
        "operators": [
            {
                "integration-name": INTEGRATION,
                "python-modules": [
                    "airflow_tidegate.operators.start",
                    "airflow_tidegate.operators.restore",
                    "airflow_tidegate.operators.snapshots",
                    "airflow_tidegate.operators.stop",
                ],
            }
        ],
        "sensors": [
            {
                "integration-name": INTEGRATION,
                "python-modules": [
                    "airflow_tidegate.sensors.checkpoint",
                    "airflow_tidegate.sensors.end_of_data",
                ],
            }
        ],
        "triggers": [{"integration-name": INTEGRATION, "python-modules": ["airflow_tidegate.triggers.waits"]}],
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


def _connection_fields() -> dict[str, Any]:
    text = {"type": ["string", "null"]}
    return {
        "master": {
            "label": "Spark master",
            "schema": text,
            "description": "local[N] or spark://host:port; default local[*].",
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
            "description": "The interpreter that has tidegate and pyspark; default: the Airflow worker's own.",
        },
    }
