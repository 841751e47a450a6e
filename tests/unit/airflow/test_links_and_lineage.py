"""What a task's page links to, and what OpenLineage is told."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import attr
import pytest
from airflow.sdk import DAG
from airflow.serialization import serialized_objects
from scripted_job import Job, ScriptedDriver

from airflow_tidegate import lineage
from airflow_tidegate.get_provider_info import get_provider_info
from airflow_tidegate.links import TidegateJobLink, TidegateSparkUiLink
from airflow_tidegate.operators.check_restore import TidegateCheckRestoreOperator
from airflow_tidegate.operators.collect_garbage import TidegateCollectGarbageOperator
from airflow_tidegate.operators.fork import TidegateForkJobOperator
from airflow_tidegate.operators.rescale import TidegateRescaleJobOperator
from airflow_tidegate.operators.snapshots import TidegateTriggerSavepointOperator
from airflow_tidegate.operators.stop import TidegateCancelJobOperator, TidegateStopJobOperator
from airflow_tidegate.operators.supervise import TidegateSuperviseJobOperator
from airflow_tidegate.operators.upgrade import TidegateUpgradeJobOperator
from airflow_tidegate.operators.verdicts import TidegateCommitCheckpointOperator
from airflow_tidegate.sensors.checkpoint import TidegateCheckpointSensor
from airflow_tidegate.sensors.end_of_data import TidegateEndOfDataSensor
from airflow_tidegate.sensors.job_status import TidegateJobStatusSensor
from airflow_tidegate.sensors.staged_checkpoint import TidegateStagedCheckpointSensor
from airflow_tidegate.sensors.watermark import TidegateWatermarkSensor

SERIALIZATION = getattr(serialized_objects, "DagSerialization", None) or serialized_objects.SerializedDAG
"""What makes a DAG the JSON that all of Airflow but the worker reads; its second name is that of Airflow 3.1."""


@pytest.fixture
def driver(job: Job) -> ScriptedDriver:
    job.submit()
    made = ScriptedDriver(job.client)
    made.status("RUNNING")
    return made


def savepoint(**changes: Any) -> TidegateTriggerSavepointOperator:
    return TidegateTriggerSavepointOperator(**{"task_id": "s", "job_id": "j1", **changes})


def test_the_job_page_is_linked_with_its_names_quoted(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    link = TidegateJobLink()
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://airflow.example/af/")
    there = link.get_link(savepoint(tidegate_conn_id="my/conn", job_id="a b"), ti_key=None)
    assert there == "https://airflow.example/af/tidegate/ui/jobs/my%2Fconn/a%20b"
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "")
    assert link.get_link(savepoint(), ti_key=None) == "/tidegate/ui/jobs/tidegate_default/j1"


def test_spark_is_linked_when_the_driver_has_told_where_it_is(job: Job, driver: ScriptedDriver) -> None:
    link = TidegateSparkUiLink()
    assert link.get_link(savepoint(), ti_key=None) == ""
    driver.beat(spark_ui=None)
    assert link.get_link(savepoint(), ti_key=None) == ""
    driver.beat(spark_ui="http://driver:4040")
    assert link.get_link(savepoint(), ti_key=None) == "http://driver:4040"
    driver.beat(spark_ui="javascript:alert(1)")
    assert link.get_link(savepoint(), ti_key=None) == "", "a click runs no script"


def test_there_is_no_link_to_spark_before_a_driver_has_begun(job: Job) -> None:
    job.submit()
    assert TidegateSparkUiLink().get_link(savepoint(), ti_key=None) == ""


def test_a_link_of_a_job_that_is_not_there_does_not_fail_the_task(job: Job) -> None:
    assert TidegateSparkUiLink().get_link(savepoint(job_id="nobody"), ti_key=None) == ""


@pytest.mark.parametrize(
    "kind",
    [
        TidegateTriggerSavepointOperator,
        TidegateStopJobOperator,
        TidegateCancelJobOperator,
        TidegateCommitCheckpointOperator,
        TidegateSuperviseJobOperator,
        TidegateForkJobOperator,
        TidegateUpgradeJobOperator,
        TidegateRescaleJobOperator,
        TidegateCheckRestoreOperator,
        TidegateCollectGarbageOperator,
        TidegateCheckpointSensor,
        TidegateEndOfDataSensor,
        TidegateJobStatusSensor,
        TidegateStagedCheckpointSensor,
        TidegateWatermarkSensor,
    ],
)
def test_every_operator_and_sensor_has_the_links_that_the_provider_registers(kind: Any) -> None:
    classes = [type(link) for link in kind.operator_extra_links]
    registered = get_provider_info()["extra-links"]
    assert [f"{c.__module__}.{c.__qualname__}" for c in classes] == registered
    assert len({link.xcom_key for link in kind.operator_extra_links}) == 2


def test_a_dag_with_them_comes_back_from_its_serialised_form_with_its_links(job: Job) -> None:
    """As Airflow's web server has it."""
    with DAG("d", schedule=None) as dag:
        TidegateSuperviseJobOperator(task_id="s", job_id="j1")
        TidegateUpgradeJobOperator(task_id="u", job_id="j1", pipeline="pipe.py:build")
        TidegateJobStatusSensor(task_id="w", job_id="j1", statuses="FINISHED")
        fork = TidegateForkJobOperator.partial(task_id="f", from_job="j1", arguments={"out": "x"})
        fork.expand(job_id=["one", "two"])
    again = SERIALIZATION.from_dict(SERIALIZATION.to_dict(dag))
    for task_id in ("s", "u", "w", "f"):
        links = again.task_dict[task_id].operator_extra_links
        assert [link.name for link in links] == ["Job page", "Spark UI"]


# ------------------------------------------------------------ OpenLineage


@dataclass
class Dataset:
    """Stands in for OpenLineage's class."""

    namespace: str
    name: str


@dataclass
class OperatorLineage:
    """Likewise, of its Airflow provider."""

    outputs: list[Dataset] = field(default_factory=list)
    run_facets: dict[str, Any] = field(default_factory=dict)


@attr.define
class RunFacet:
    """Likewise."""

    _producer: str = attr.field(default="", kw_only=True)


@pytest.fixture
def openlineage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules of OpenLineage's client and provider that hold no more than what is used of them."""
    parts: dict[str, dict[str, Any]] = {
        "airflow.providers.openlineage.extractors": {"OperatorLineage": OperatorLineage},
        "openlineage.client.event_v2": {"Dataset": Dataset},
        "openlineage.client.facet_v2": {"RunFacet": RunFacet},
    }
    for name, content in parts.items():
        module = ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
        while "." in name:
            name = name.rpartition(".")[0]
            if name not in ("airflow", "airflow.providers"):
                monkeypatch.setitem(sys.modules, name, ModuleType(name))
    lineage._facet_class.cache_clear()


def complete(driver: ScriptedDriver, checkpoint_id: int, sinks: dict[str, str]) -> None:
    facts = {"checkpoint_id": checkpoint_id, "kind": "checkpoint", "path": f"p{checkpoint_id}"}
    driver.generation_log.append("claim", facts)
    driver.generation_log.append("complete", {**facts, "sinks": sinks})


SINKS = {
    "a": "Parquet('s3://lake/out', partition_by=['day'])",
    "b": "Csv('/srv/out')",
    "c": "Postgres('ann@db:5432/flights', 'public.delays', key=['day'])",
    "d": "MySink",
}
PLACES = [("s3://lake", "out"), ("file", "/srv/out"), ("postgres://db:5432", "flights.public.delays")]


def tell(driver: ScriptedDriver) -> Any:
    complete(driver, 1, {"old": "Parquet('/gone')", **SINKS})
    complete(driver, 2, SINKS)
    return savepoint().get_openlineage_facets_on_complete(None)


@pytest.mark.usefixtures("openlineage")
def test_openlineage_is_told_where_the_job_writes_and_what_its_newest_snapshot_is(driver: ScriptedDriver) -> None:
    told = tell(driver)
    assert {(d.namespace, d.name) for d in told.outputs} >= set(PLACES)
    facet = told.run_facets[lineage.FACET]
    assert (facet.job_id, facet.submission, facet.generation, facet.status) == ("j1", 1, 1, "RUNNING")
    assert (facet.checkpoint_id, facet.snapshot) == (2, "p2")


@pytest.mark.usefixtures("openlineage")
def test_a_job_that_is_not_there_has_no_lineage(job: Job) -> None:
    assert savepoint().get_openlineage_facets_on_complete(None) is None


def test_without_openlineage_nothing_is_told(driver: ScriptedDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "airflow.providers.openlineage.extractors", None)
    assert tell(driver) is None


def test_openlineages_own_classes_take_it(driver: ScriptedDriver) -> None:
    from airflow.providers.openlineage import extractors
    from openlineage.client.serde import Serde

    lineage._facet_class.cache_clear()
    told = tell(driver)
    assert isinstance(told, extractors.OperatorLineage)
    assert '"checkpoint_id": 2' in Serde.to_json(told.run_facets[lineage.FACET])
    assert '"namespace": "s3://lake"' in Serde.to_json(told.outputs[0])
