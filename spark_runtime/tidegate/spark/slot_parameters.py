"""The parameters of a slot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tidegate.connectors.found_schema import FoundSchemas
from tidegate.log_format import LogFormat


@dataclass(frozen=True)
class SlotParameters:
    """Parameters with which a Spark task becomes a slot; sent in Spark's closure.

    Attributes:
        secret: secret of this run, for both kinds of connection; not in its repr.
        versions: versions of the driver; see `versions`.
        schemas: schemas that sources found when the job was first built (S5.5).
        bind_host: address to listen on; None: the executor's own.
    """

    root: str
    storage_options: Mapping[str, Any]
    job_id: str
    spec: int
    generation: int
    run_id: str
    control_host: str
    control_port: int
    digest: str
    schemas: FoundSchemas
    versions: Mapping[str, str]
    bind_host: str | None
    log_format: LogFormat
    secret: bytes = field(repr=False)
