"""A launcher that another package brings: its drivers are processes of a made-up scheduler, here of this host."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import other_package
import pytest

from tidegate.jobs.launch import launcher_registry

KIND = "nomad"
SOURCE = '''
"""Drivers as jobs of Nomad. `allocations` stands in for its server."""

import secrets
from dataclasses import replace

from tidegate.errors import EnvironmentProblemError
from tidegate.jobs.launch.launcher import Check, DriverState, LauncherSetting, driver_arguments, recorded_place
from tidegate.jobs.launches import record_launch, record_process

ADDRESS = LauncherSetting(
    name="nomad_address",
    label="Nomad",
    description="URL of Nomad's server.",
    default="http://nomad:4646",
    metavar="URL",
)
allocations = {}


class NomadLauncher:
    kind = "nomad"
    settings = (ADDRESS,)
    runs_on_this_host = False

    def __init__(self, settings):
        self._address = settings.value(ADDRESS)

    def launch(self, job, spec, attempt=None):
        def command(made):
            return ("nomad", "job", "run", f"-address={self._address}", *driver_arguments(job.root, made, spec.job_id))

        launch = record_launch(
            job.store, job.layout, spec.number, launcher=self.kind, command=command, host=self._address, attempt=attempt
        )
        if "broken" in self._address:
            raise EnvironmentProblemError("Nomad does not answer", where=self._address)
        allocations[launch.nonce] = DriverState.RUNNING
        return record_process(job.store, job.layout, replace(launch, external_id=f"allocation-{secrets.token_hex(4)}"))

    def state(self, launch):
        return allocations.get(launch.nonce, DriverState.GONE)

    def log(self, launch):
        return f"nomad alloc logs {launch.external_id}"

    def kill(self, launch, *, graceful=True):
        if self.state(launch) is not DriverState.RUNNING:
            return False
        allocations[launch.nonce] = DriverState.GONE
        return True

    def check(self, master, spark_conf, world):
        return [Check(world.connect("nomad", 4646) is None, f"Nomad at {self._address}")]

    @staticmethod
    def log_place(launch):
        if launch.external_id is None:
            return recorded_place(launch)
        return f"`nomad alloc logs {launch.external_id}` shows its log"
'''


@contextmanager
def installed(folder: Path, monkeypatch: pytest.MonkeyPatch, source: str = SOURCE) -> Iterator[None]:
    """The package is there, and nothing remembers it afterwards."""
    names = {KIND: "nomad_launcher:NomadLauncher"}
    with monkeypatch.context() as patch:
        other_package.install(
            folder, patch, module="nomad_launcher", source=source, group=launcher_registry.GROUP, names=names
        )
        launcher_registry.forget_packages()
        try:
            yield
        finally:
            launcher_registry.forget_packages()
