"""tidegate's Airflow provider: hook, operators, sensors and triggers over a job directory.

Of the runtime it imports `tidegate.jobs` and nothing else: no Airflow process needs a network route to a Spark
driver, nor Spark's packages.
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
