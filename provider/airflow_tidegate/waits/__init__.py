"""Conditions that Airflow tasks wait for, and the shared reads of job directories."""
