"""tidegate's Airflow provider: hook, operators, sensors and triggers over a job directory.

Of the runtime it imports `tidegate.jobs` and nothing else: no Airflow process needs a network route to a Spark
driver, nor Spark's packages.
"""
