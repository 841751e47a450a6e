"""Links on a task's page in Airflow to its job."""

from __future__ import annotations

import logging
from typing import Any
from urllib.parse import quote, urlsplit

from airflow.sdk import BaseOperatorLink

from airflow_tidegate.hooks.tidegate import TidegateHook
from airflow_tidegate.version_compat import conf
from tidegate.errors import TidegateError

PAGE = "/tidegate/ui/jobs"
"""Path of the job pages in Airflow's web server."""

logger = logging.getLogger("airflow_tidegate")


class TidegateJobLink(BaseOperatorLink):
    """Link to the job's page, `/tidegate/ui/jobs/<connection>/<job>`."""

    name = "Job page"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """Return the page's URL. Airflow calls this after the task has run, so templates are rendered."""
        base = str(conf.get("api", "base_url", fallback="") or "").rstrip("/")
        return f"{base}{PAGE}/{quote(operator.tidegate_conn_id, safe='')}/{quote(operator.job_id, safe='')}"


class TidegateSparkUiLink(BaseOperatorLink):
    """Link to Spark's own page of the driver, if the job has `spark.ui.enabled`."""

    name = "Spark UI"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """Return the URL that the driver has reported; "" if it has reported none."""
        try:
            client = TidegateHook(operator.tidegate_conn_id).get_client(operator.job_id)
            generation = client.view().generation
            hint = client.hint(generation) if generation else None  # 0: no driver has begun yet
        except TidegateError as error:
            logger.info("job %s: the task has no link to the Spark UI, nothing to do: %s", operator.job_id, error)
            return ""
        url = str((hint.data.get("spark_ui") if hint is not None else None) or "")
        # Airflow renders it as a link. Without this check, anybody who can write the job root could inject a script.
        return url if urlsplit(url).scheme in ("http", "https") else ""
