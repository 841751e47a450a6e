"""Ways to bring a Spark driver up, chosen by the connection; `ensure_driver` is the one entry."""

from airflow_tidegate.launchers.driver_launch import check_machine, ensure_driver

__all__ = ["check_machine", "ensure_driver"]
