"""tidegate's Airflow provider: hook, operators, sensors and triggers that work on a job directory.

It imports only `tidegate.jobs` from the runtime: no Airflow process needs Spark's packages or a network route to a
Spark driver.
"""

from importlib.util import find_spec

from tidegate.errors import MissingExtraError
from tidegate.extras import installation

if find_spec("airflow") is None:
    raise MissingExtraError(
        "airflow_tidegate needs Apache Airflow",
        cause="the package airflow is not installed",
        remedy=f"Run: {installation('airflow')}",
    )
