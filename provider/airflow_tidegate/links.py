"""Buttons on a task's page in Airflow that jump to the job."""

from __future__ import annotations

import logging
from typing import Any
from urllib.parse import quote, urlsplit

from airflow.sdk import BaseOperatorLink

from airflow_tidegate.hooks.tidegate import TidegateHook
from airflow_tidegate.version_compat import conf
from tidegate.errors import TidegateError

PAGE = "/tidegate/ui/jobs"
"""Path of the jobs' pages in Airflow's web server."""

logger = logging.getLogger("airflow_tidegate")


class TidegateJobLink(BaseOperatorLink):
    """To the job's page, `/tidegate/ui/jobs/<connection>/<job>`."""

    name = "Job page"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """The page's URL; made when the task has run, so that its templates are rendered."""
        base = str(conf.get("api", "base_url", fallback="") or "").rstrip("/")
        return f"{base}{PAGE}/{quote(operator.tidegate_conn_id, safe='')}/{quote(operator.job_id, safe='')}"


class TidegateSparkUiLink(BaseOperatorLink):
    """To Spark's own pages of the driver, when the job has `spark.ui.enabled`."""

    name = "Spark UI"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """The URL that the driver has told; "" when it has told none."""
        try:
            client = TidegateHook(operator.tidegate_conn_id).get_client(operator.job_id)
            generation = client.view().generation
            hint = client.hint(generation) if generation else None  # 0: no driver has begun yet
        except TidegateError as error:
            logger.info("job %s: no link to Spark: %s", operator.job_id, error)
            return ""
        told = str((hint.data.get("spark_ui") if hint is not None else None) or "")
        # Airflow puts it into a link; who may write the job root could have a click run a script.
        return told if urlsplit(told).scheme in ("http", "https") else ""
