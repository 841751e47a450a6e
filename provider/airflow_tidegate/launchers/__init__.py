"""Launch Spark drivers as the connection says; call `ensure_driver`."""

from airflow_tidegate.launchers.driver_launch import check_machine, ensure_driver

__all__ = ["check_machine", "ensure_driver"]
