"""Ways to bring a Spark driver up, chosen by the connection; `ensure_driver` is the one entry."""

from airflow_tidegate.launchers.ensuring import ensure_driver

__all__ = ["ensure_driver"]
