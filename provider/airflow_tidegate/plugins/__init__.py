"""The page of jobs in Airflow's own UI."""
