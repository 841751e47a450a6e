"""Base class of operators that start processes which need secrets of Airflow connections."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow_tidegate.hooks.tidegate import JobRoot
from airflow_tidegate.launchers.connection_secrets import read_secrets, require_secrets
from airflow_tidegate.operators.job_operator import JobOperator


class SecretsOperator(JobOperator):
    """Base class of operators that start drivers, or run code of the pipeline on the worker.

    Args:
        secrets: environment variables of the process -> `conn:ID/password`, `conn:ID/login` or `conn:ID/extra/KEY`;
            templated. The pipeline refers to them as `secret:env/NAME`. The values are read on the worker when the
            process is started. The job directory, Airflow's database and command lines contain only names and places.
            None: for a new submission none, for a restore the variables of the last submission.
    """

    template_fields: Sequence[str] = (*JobOperator.template_fields, "secrets")

    def __init__(self, *, secrets: Mapping[str, str] | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.secrets = secrets

    def check_secrets(
        self, root: JobRoot, before: Mapping[str, str], master: str | None, spark_conf: Mapping[str, Any]
    ) -> None:
        """Check, before a job is submitted or stopped, that its driver would get its secrets.

        Args:
            before: `Spec.secrets` that a restore copies; {} for a new job.

        Raises:
            OptionError: the driver or its slots would lack a secret, or it cannot be read.
        """
        read_secrets(self.secrets)
        needed = before if self.secrets is None else self.secrets
        require_secrets(root, needed, self.secrets, master=master or root.master, spark_conf=spark_conf)
