"""Parts that a driver and its daemon leave out, because each of many idle jobs would pay for them (ADR 0035)."""

from __future__ import annotations

import importlib
import subprocess
import sys
import zipfile
import zipimport
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from py4j import protocol
from pyspark.sql import types

from tidegate.jobs.options import JobOptions
from tidegate.spark import slot_entry
from tidegate.spark.application import NumpyConverter, limit_numpy_converters
from tidegate.spark.slot_entry import SlotRuntime
from tidegate.spark.worker_daemon import settle_archives

DRIVER = """
import sys
import tidegate.spark.driver
import tidegate
from pyspark.sql.types import NumpyScalarConverter
from py4j import protocol
from tidegate.spark.application import limit_numpy_converters

limit_numpy_converters()
assert not any(converter.can_convert("a text") for converter in protocol.INPUT_CONVERTER)
print("pandas" in sys.modules, "numba" in sys.modules)
"""


def test_a_driver_imports_neither_pandas_nor_numba() -> None:
    """24 and 43 MiB in each job. A pipeline with expressions still imports pandas."""
    run = subprocess.run([sys.executable, "-c", DRIVER], capture_output=True, text=True, check=False)
    assert run.stdout.strip() == "False False", run.stderr


def test_pysparks_converters_are_asked_about_numpy_values_only(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    class NumpyThingConverter:
        def can_convert(self, value: object) -> bool:
            asked.append(value)
            return True

        def convert(self, value: object, client: object) -> object:
            return (value, client)

    NumpyThingConverter.__module__ = types.__name__
    other = SimpleNamespace()
    converters: list[Any] = [other, NumpyThingConverter()]
    monkeypatch.setattr(protocol, "INPUT_CONVERTER", converters)
    limit_numpy_converters()
    limit_numpy_converters()
    assert converters[0] is other
    limited = converters[1]
    assert isinstance(limited, NumpyConverter) and not isinstance(limited._converter, NumpyConverter)
    assert not limited.can_convert("text") and not limited.can_convert(7) and asked == []
    number, column = np.int64(7), np.zeros(2)
    assert limited.can_convert(number) and limited.can_convert(column) and len(asked) == 2
    assert limited.convert(number, "client") == (number, "client")


def test_pyspark_still_has_the_converters_that_are_limited() -> None:
    """Their names are PySpark's own; under other names, each driver would import pandas again."""
    names = {type(getattr(c, "_converter", c)).__name__ for c in protocol.INPUT_CONVERTER}
    assert {"NumpyScalarConverter", "NumpyArrayConverter"} <= names


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an archive that has a module, and a jar; both on the path of imports."""
    for name in ("modules.zip", "spark.jar"):
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            archive.writestr(f"of_{name.replace('.', '_')}.py", "x = 1\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "modules.zip"), str(tmp_path / "spark.jar"), *sys.path])
    monkeypatch.setattr(sys, "path_importer_cache", dict(sys.path_importer_cache))
    return tmp_path


def test_the_daemon_takes_jars_off_the_path_and_still_imports_from_archives(path: Path) -> None:
    assert importlib.util.find_spec("of_spark_jar") is not None
    settle_archives()
    assert importlib.util.find_spec("of_spark_jar") is None
    assert importlib.util.find_spec("of_modules_zip") is not None


def test_workers_do_not_read_the_directory_of_an_archive_again(path: Path) -> None:
    """PySpark invalidates the caches in each worker, before it adds the job's own archives to the path."""
    assert importlib.util.find_spec("of_modules_zip") is not None
    settle_archives()
    finder: Any = sys.path_importer_cache[str(path / "modules.zip")]
    assert isinstance(finder, zipimport.zipimporter)
    directory = finder._files  # type: ignore[attr-defined]
    importlib.invalidate_caches()
    assert finder._files is directory  # type: ignore[attr-defined]
    with zipfile.ZipFile(path / "later.zip", "w") as archive:
        archive.writestr("of_later_zip.py", "x = 1\n")
    sys.path.insert(0, str(path / "later.zip"))
    importlib.invalidate_caches()
    assert importlib.util.find_spec("of_later_zip") is not None


def test_a_heartbeat_wakes_the_loop_so_that_an_idle_slot_does_not_look_hung(monkeypatch: pytest.MonkeyPatch) -> None:
    """S9.1: the driver expects that the rounds of a loop increase from heartbeat to heartbeat."""
    events: list[str] = []
    left = iter([False, False, True])
    slot: Any = object.__new__(SlotRuntime)
    slot._index, slot._slot = 0, None
    slot._options = JobOptions(heartbeat_interval="10 ms")
    slot._over = SimpleNamespace(wait=lambda _s: next(left))
    slot._control = SimpleNamespace(send=lambda message: events.append(type(message).__name__))
    slot._wake = SimpleNamespace(set=lambda: events.append("wake"))
    monkeypatch.setattr(slot_entry, "resident_bytes", lambda: 1)
    clock = iter(range(100))
    monkeypatch.setattr(slot_entry, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    slot._watch()
    assert events == ["Heartbeat", "wake", "Heartbeat", "wake"]
