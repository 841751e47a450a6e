"""Settings of the Flink peers: a cluster within one JVM, two slots, a checkpoint every second."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pyflink.common import Configuration


def configuration(jars: str, work: str, settings: Mapping[str, str]) -> Configuration:
    """Return a configuration.

    Args:
        jars: paths, separated by ":".
        work: folder for checkpoints and RocksDB.
        settings: of one engine; they replace others.
    """
    found = Configuration()
    for name, value in {
        "pipeline.jars": ";".join(Path(jar).as_uri() for jar in jars.split(":")),
        "pipeline.object-reuse": "true",
        "parallelism.default": "2",
        "table.local-time-zone": "UTC",
        "state.backend.type": "hashmap",
        "state.backend.rocksdb.localdir": f"{work}/rocksdb",
        "execution.checkpointing.interval": "1 s",
        "execution.checkpointing.incremental": "true",
        "execution.checkpointing.dir": Path(work, "checkpoints").as_uri(),
        "taskmanager.memory.managed.size": "1g",
        "taskmanager.numberOfTaskSlots": "2",
        "restart-strategy.type": "none",
        **settings,
    }.items():
        found.set_string(name, value)
    return found
