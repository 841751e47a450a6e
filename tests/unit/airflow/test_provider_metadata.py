"""What Airflow learns of the provider, and what the connection means."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import airflow
import jsonschema
import pytest
from scripted_job import Job

from airflow_tidegate.get_provider_info import get_provider_info
from airflow_tidegate.hooks.tidegate import JobRoot, TidegateHook
from airflow_tidegate.launchers import ensure_driver
from tidegate.errors import EnvironmentProblemError, OptionError


def connect(monkeypatch: pytest.MonkeyPatch, **connection: Any) -> TidegateHook:
    monkeypatch.setenv("AIRFLOW_CONN_C", json.dumps({"conn_type": "tidegate", **connection}))
    return TidegateHook("c")


def test_the_provider_info_is_valid_against_airflows_schema() -> None:
    schema = json.loads((Path(airflow.__file__).parent / "provider_info.schema.json").read_text())
    jsonschema.validate(get_provider_info(), schema)


def test_every_module_and_class_that_the_provider_info_names_is_there() -> None:
    info = get_provider_info()
    for family in ("hooks", "operators", "sensors", "triggers"):
        for entry in info[family]:
            for module in entry["python-modules"]:
                importlib.import_module(module)
    [connection] = info["connection-types"]
    module, _, name = connection["hook-class-name"].rpartition(".")
    assert getattr(importlib.import_module(module), name) is TidegateHook
    assert connection["connection-type"] == TidegateHook.conn_type


def test_every_field_of_the_connection_form_is_read_by_the_hook(monkeypatch: pytest.MonkeyPatch) -> None:
    values = {
        "master": "local[3]",
        "spark_conf": '{"spark.x": "1"}',
        "storage_options": '{"endpoint_url": "http://x"}',
        "python": "/usr/bin/python3",
        "launcher": "kubernetes",
        "spark_submit": "/opt/spark/bin/spark-submit",
        "yarn": "/opt/hadoop/bin/yarn",
        "driver_script": "local:///driver.py",
    }
    assert set(get_provider_info()["connection-types"][0]["conn-fields"]) == set(values)
    root = connect(monkeypatch, host="s3://b/t", extra=values).get_conn()
    assert (root.root, root.master, root.python) == ("s3://b/t", "local[3]", "/usr/bin/python3")
    settings = root.launcher_settings()
    assert (settings.kind, settings.python, settings.spark_submit) == tuple(
        values[name] for name in ("launcher", "python", "spark_submit")
    )
    assert settings.extra == {name: values[name] for name in ("yarn", "driver_script")}
    assert root.spark_conf == {"spark.x": "1"}
    assert root.storage_options == {"endpoint_url": "http://x"}


def test_the_root_may_stand_in_the_extra_and_the_rest_has_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    root = connect(monkeypatch, extra={"root": "/srv/t"}).get_conn()
    assert (root.root, root.master, root.python, root.spark_conf) == ("/srv/t", "local[*]", None, {})


def test_a_name_in_the_root_is_no_password(monkeypatch: pytest.MonkeyPatch) -> None:
    root = "abfs://lake@account.dfs.core.windows.net/jobs"
    assert connect(monkeypatch, host=root).get_conn().root == root


@pytest.mark.parametrize(
    ("connection", "words"),
    [
        ({}, "has no job root"),
        ({"host": "s3://key:hush@lake/x"}, r"the job root contains a password \[connection c\](?!.*hush)"),
        ({"host": "/x", "extra": {"spark_conf": "{"}}, "spark_conf is not JSON"),
        ({"host": "/x", "extra": {"storage_options": [1]}}, "storage_options must be a JSON object"),
        ({"host": "/x", "extra": {"launcher": "mesos"}}, r"no launcher 'mesos' \[connection c\].*spark-submit"),
        (
            {"host": "/x", "extra": {"storage_options": {"secret": "plain"}}},
            r"'secret' holds a secret in plain text \[connection c, storage_options\]",
        ),
        (
            {"host": "/x", "extra": {"spark_conf": {"spark.hadoop.fs.s3a.secret.key": "plain"}}},
            r"plain text \[connection c, spark_conf\]",
        ),
    ],
)
def test_a_connection_that_is_wrong_says_which_field(
    monkeypatch: pytest.MonkeyPatch, connection: dict[str, Any], words: str
) -> None:
    with pytest.raises(OptionError, match=words):
        connect(monkeypatch, **connection).get_conn()


def test_the_test_button_probes_the_store_and_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    good, message = connect(monkeypatch, host=str(tmp_path)).test_connection()
    assert good, message
    assert list(tmp_path.iterdir()) == []


def test_the_test_button_tells_what_is_wrong(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    good, message = connect(monkeypatch, host=str(tmp_path / "file" / "root")).test_connection()
    assert not good
    assert "file" in message
    assert not connect(monkeypatch).test_connection()[0]


def test_the_test_button_asks_what_the_launcher_needs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def press(**extra: Any) -> tuple[bool, str]:
        return connect(monkeypatch, host=str(tmp_path), extra=extra).test_connection()

    good, message = press(python=sys.executable)
    assert good and f"{sys.executable} has the packages for a driver" in message
    good, message = press(python="/no/such/python")
    assert not good and "works" in message and "/no/such/python cannot be run" in message
    good, message = press(launcher="spark-submit", spark_submit="/no/such/spark-submit", master="spark://127.0.0.1:1")
    assert not good and "/no/such/spark-submit does not exist" in message and "127.0.0.1:1" in message
    assert press(launcher="agent")[0]


def test_a_local_driver_is_refused_where_the_worker_is_ephemeral(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = job.submit()
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTOR", "LocalExecutor,KubernetesExecutor")
    with pytest.raises(EnvironmentProblemError, match="ephemeral"):
        ensure_driver(job.client, spec, JobRoot(str(job.root)))
    assert job.launches == []
