"""The archive of classes that makes later drivers start faster."""

from __future__ import annotations

import os
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from builders.jobs import submission
from pyspark import SparkConf
from pyspark.errors import PySparkRuntimeError

from tidegate.jobs.options import JobOptions
from tidegate.spark import application
from tidegate.spark.class_archive import MAGIC, WRITTEN_AFTER_S, java_options, remove_archives

OPTIONS = "spark.driver.extraJavaOptions"


@pytest.fixture
def jars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Spark's jars, beside a Java of its own."""
    (tmp_path / "java" / "bin").mkdir(parents=True)
    (tmp_path / "java" / "bin" / "java").touch()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "spark.jar").write_text("1")
    return tmp_path / "jars"


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """The private cache directory."""
    (tmp_path / "cache").mkdir()
    return tmp_path / "cache"


def created(options: str) -> Path:
    """The file that the JVM writes when it ends."""
    found = re.search(r"-XX:ArchiveClassesAtExit=(\S+)", options)
    assert found is not None, options
    return Path(found[1])


def write(path: Path, content: bytes) -> None:
    """Write an archive as a JVM did some time ago."""
    path.write_bytes(content)
    ago = path.stat().st_mtime - WRITTEN_AFTER_S - 1
    os.utime(path, (ago, ago))


def test_the_first_driver_leaves_a_mark_the_second_an_archive_that_the_third_uses(cache: Path, jars: Path) -> None:
    assert java_options(cache, jars, "streaming") == ""
    new = created(java_options(cache, jars, "streaming"))
    write(new, MAGIC + b"classes")
    used = java_options(cache, jars, "streaming")
    (archive,) = cache.glob("*.jsa")
    assert f"-XX:SharedArchiveFile={archive} " in used
    assert archive.read_bytes() == MAGIC + b"classes"
    assert java_options(cache, jars, "streaming") == used


def test_an_archive_that_is_being_written_is_not_used_and_not_written_twice(cache: Path, jars: Path) -> None:
    java_options(cache, jars, "streaming")
    created(java_options(cache, jars, "streaming")).write_bytes(MAGIC)
    assert java_options(cache, jars, "streaming") == ""


@pytest.mark.parametrize("content", [b"", b"\0\0\0\0 no header yet"], ids=["empty", "without its header"])
def test_an_archive_whose_jvm_was_killed_while_it_wrote_is_removed(cache: Path, jars: Path, content: bytes) -> None:
    java_options(cache, jars, "streaming")
    new = created(java_options(cache, jars, "streaming"))
    write(new, content)
    assert created(java_options(cache, jars, "streaming")) != new
    assert not new.exists()


def test_an_archive_that_was_cut_off_is_not_used(cache: Path, jars: Path) -> None:
    """The JVM would end with a bus error."""
    java_options(cache, jars, "streaming")
    write(created(java_options(cache, jars, "streaming")), MAGIC + b"classes")
    java_options(cache, jars, "streaming")
    (archive,) = cache.glob("*.jsa")
    archive.write_bytes(MAGIC)
    created(java_options(cache, jars, "streaming"))
    assert not archive.exists()


def test_another_purpose_or_spark_has_another_archive(cache: Path, jars: Path) -> None:
    java_options(cache, jars, "streaming")
    write(created(java_options(cache, jars, "streaming")), MAGIC)
    assert "SharedArchiveFile" in java_options(cache, jars, "streaming")
    assert java_options(cache, jars, "batch") == ""
    (jars / "spark.jar").write_text("22")
    assert java_options(cache, jars, "streaming") == ""


def test_without_a_private_directory_or_java_there_are_no_options(
    cache: Path, jars: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert java_options(None, jars, "streaming") == ""
    (cache / "with a space").mkdir()
    assert java_options(cache / "with a space", jars, "streaming") == ""
    assert list((cache / "with a space").iterdir()) == []
    (cache / "with a space").rmdir()
    monkeypatch.setenv("JAVA_HOME", str(cache))
    assert java_options(cache, jars, "streaming") == ""
    assert list(cache.iterdir()) == []


def test_archives_are_removed_after_a_jvm_did_not_start_with_one(cache: Path, jars: Path) -> None:
    java_options(cache, jars, "streaming")
    write(created(java_options(cache, jars, "streaming")), MAGIC)
    java_options(cache, jars, "streaming")
    remove_archives(cache)
    assert list(cache.glob("*.jsa")) == []
    created(java_options(cache, jars, "streaming"))


@pytest.mark.parametrize(
    ("message", "starts"),
    [("[JAVA_GATEWAY_EXITED] Java gateway process exited", 2), ("the master does not answer", 1)],
)
def test_only_a_jvm_that_does_not_start_is_started_again_without_its_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, message: str, starts: int
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    archive = tmp_path / "tidegate" / "classes" / "classes-a-1.jsa"
    archive.parent.mkdir(parents=True)
    for level in (archive.parent, archive.parent.parent):
        level.chmod(0o700)
    archive.write_bytes(b"1")
    tried: list[str] = []

    def start(conf: SparkConf) -> str:
        tried.append(str(conf.get(OPTIONS)))
        if len(tried) == 1:
            raise PySparkRuntimeError(message)
        return "started"

    monkeypatch.setattr(application.SparkContext, "getOrCreate", start)
    spec: Any = SimpleNamespace(job_id="j", master="local[1]", spark_conf={})
    if starts == 1:
        with pytest.raises(PySparkRuntimeError, match=message):
            application._start(spec, {OPTIONS: "-Xa"}, "-Xb")
        assert archive.exists()
    else:
        made: Any = application._start(spec, {OPTIONS: "-Xa"}, "-Xb")
        assert made == "started"
        assert not archive.exists()
    assert tried == ["-Xa -Xb", "-Xa"][:starts]


def test_java_options_of_the_installations_defaults_are_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Options of the driver's JVM, such as a trust store, would be lost."""
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    spec = submission(job_id="j", master="local[2]")

    def given() -> str | None:
        return application.spark_settings(spec, JobOptions()).get(OPTIONS)

    assert given() == application.IDLE_JVM[OPTIONS]
    defaults = tmp_path / "spark-defaults.conf"
    for text in ("# spark.driver.extraJavaOptions -Da=b\n", "spark.driver.extraJavaOptionsOther -Da=b\n"):
        defaults.write_text(text)
        assert given() is not None
    for text in ("spark.driver.extraJavaOptions -Da=b\n", "a b\n  spark.driver.extraJavaOptions=-Da=b\n"):
        defaults.write_text(text)
        assert given() is None
