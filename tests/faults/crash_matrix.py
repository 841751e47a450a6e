"""The crash matrix: a job is killed at every step of its end and of every commit, subtask or driver, and must lose and
repeat nothing and come to its end.

A run without a kill records the points it passes (`crash_points`); then the job runs anew for each of them, and for
each victim, and is killed there. `make crash-matrix` does that in this process for every point, and on real Spark for a
choice of them (`crash_on_spark`). What was killed is never repaired by hand: the supervisor restarts a run, and a dead
driver's successor is launched.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import multiprocessing
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

import kafka_broker
import postgres_server
from crash_points import NAMED_STEPS, SINK_STEPS, points_installed
from crash_scenarios import WAYS, Found, PostgresAddress, Servers, into, target
from crash_slots import Kill, Killer
from crash_world import World

from tidegate.connectors.upserts import staged_groups

VICTIMS = ("subtask", "driver")
SINKS = (
    "Collect",
    "Parquet",
    "Csv",
    "JsonLines",
    "Delta",
    "DeltaUpserts",
    "Iceberg",
    "IcebergUpserts",
    "Postgres",
    "Kafka",
    "PySparkStream",
    "PySparkBatch",
)
"""Collect: memory of the process; it is there for the steps that are not a sink's own."""
COMMIT_POINTS = (
    "sink",
    "pre-commit",
    "log complete",
    "complete sent",
    "complete received",
    "committed",
    "log committed",
)
"""How the points begin at which jobs into real sinks are killed: the others do not concern them."""
OFTEN = 2
"""Of a point that a process meets again and again so many of the first and of the last are killed at."""
OPTIONS = {"checkpoint_interval": "350 ms", "restart_delay": "50 ms", "min_pause_between_checkpoints": "0 s"}
COMMAND_ROUND = 45
"""At which round people ask for what the way to end wants, if a checkpoint is done: then some rows are not read."""

_names = itertools.count(1)
_servers = Servers()


@dataclass(frozen=True)
class Case:
    """One kill.

    Attributes:
        point: its number; None: none is killed.
        where: process and name of the point, for people.
    """

    sink: str
    way: str
    victim: str = ""
    point: int | None = None
    where: str = ""

    def __str__(self) -> str:
        return f"{self.sink}, {self.way}: {self.victim} killed at point {self.point} ({self.where})"


@dataclass(frozen=True)
class Outcome:
    """Of a case: what was found, what happened, and the points (process, name) that were met.

    Attributes:
        killed: False: at that point there was nobody to kill, such as a slot between two runs. Then it is no case.
    """

    case: Case
    found: Found
    story: tuple[str, ...] = ()
    points: tuple[tuple[str, str], ...] = ()
    killed: bool = True


def run_in_process(case: Case) -> Outcome:
    """One case, from submission to the end of the last submission. Installs the points in this process meanwhile."""
    killer = Killer(None if case.point is None else Kill(case.point, case.victim))
    folder = Path(tempfile.mkdtemp(prefix="crash-matrix-"))
    try:
        one_thread = mock.patch.object(staged_groups, "LEADER_TIMEOUT_S", 0.0)  # a wait for another subtask is useless
        place = target(case.sink, folder, f"case-{next(_names)}", _servers)
        with one_thread, place as out, points_installed(killer.at):
            eager = case.point is None or (case.point + (case.victim == "driver")) % 2 == 0
            world = World(lambda: into(out.sink), OPTIONS, killer, eager)
            try:
                stuck = _drive(world, case.way)
            finally:
                world.close()
            found = out.judge(stuck, fired_early=case.way == "drain")
            return Outcome(case, found, tuple(world.story), tuple(killer.points), killer.has_killed)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _drive(world: World, way: str) -> str:
    """Until the job has come to its natural end; else why it did not. Points count in the first submission, and in the
    next until that runs: from there on it is a natural end."""
    world.submit()
    asked = False

    def ask(number: int) -> None:
        nonlocal asked
        if asked or number < COMMAND_ROUND or not any(d.kind == "complete" for d in world.decisions()):
            return
        asked = True
        if way in ("suspend", "drain"):
            world.send("stop", mode=way)
        elif way in ("cancel", "savepoint"):
            world.send(way)
        elif way == "SIGTERM" and world.driver is not None:
            world.driver.terminated = True

    def end_of_counting(_: int) -> None:
        world.counts = world.counts and world.status() != "RUNNING"

    status = world.to_end(ask)
    for _ in range(3):
        if status == "FINISHED":
            return ""
        given_up = status == "FAILED" and way == "SIGTERM"  # it was terminated: people are told to restore
        if status not in ("STOPPED", "CANCELED") and not given_up:
            return f"the job is {status}: {world.last_failure()}"
        world.note(f"{status}; the latest is restored")
        world.submit(allow_drained=way == "drain")
        status = world.to_end(end_of_counting)
    return f"after three restores the job is {status}"


def cases(sink: str, way: str) -> list[Case]:
    """Every point of a run without a kill, for each victim; of real sinks those of commits, which they concern."""
    dry = run_in_process(Case(sink, way))
    assert dry.found.is_right, f"{sink}, {way}, without a kill: {dry.found}, {dry.story}"
    chosen = range(len(dry.points)) if sink == "Collect" else _of_commits(dry.points)
    return [Case(sink, way, victim, number, ", ".join(dry.points[number])) for number in chosen for victim in VICTIMS]


def _of_commits(points: Sequence[tuple[str, str]]) -> list[int]:
    """Numbers of the points of commits, of those that come often the first and the last."""
    places: dict[tuple[str, str], list[int]] = {}
    for number, (process, name) in enumerate(points):
        if name.startswith(COMMIT_POINTS):
            places.setdefault((process, name), []).append(number)
    return sorted({number for met in places.values() for number in (*met[:OFTEN], *met[-OFTEN:])})


def missing_steps(sink: str, planned: Sequence[Case]) -> list[str]:
    """Named steps that are in no case: of the end flow and of commits, or of a real sink."""
    met = {case.where.partition(", ")[2] for case in planned}
    return [name for name in SINK_STEPS.get(sink, NAMED_STEPS) if name not in met]


# ---------------------------------------------------------------- the whole matrix


def in_process(sinks: Sequence[str], every: int, workers: int) -> list[Outcome]:
    """All cases of these sinks, one of `every`. Raises SystemExit when a step that must be met is not."""
    outcomes: list[Outcome] = []
    with _started(sinks) as servers, multiprocessing.get_context("spawn").Pool(workers, _begin, (servers,)) as pool:
        for sink in sinks:
            planned: list[Case] = []
            for way, found in zip(WAYS, pool.starmap(cases, [(sink, way) for way in WAYS], 1), strict=True):
                planned += found
                begun = time.monotonic()
                done = [o for o in pool.imap_unordered(run_in_process, found[::every], 8) if o.killed]
                outcomes += done
                report(f"in process: {sink}, {way}", done, time.monotonic() - begun)
            if missing := missing_steps(sink, planned):
                raise SystemExit(f"crash-matrix: {sink}: no case is killed at {', '.join(missing)}")
    return outcomes


def report(what: str, outcomes: Sequence[Outcome], seconds: float) -> None:
    """A line, and one for each case that is wrong."""
    wrong = [outcome for outcome in outcomes if not outcome.found.is_right]
    print(f"{what}: {len(outcomes)} cases, {len(wrong)} wrong, {seconds:.0f} s", flush=True)
    for outcome in wrong:
        print(f"  {outcome.case}: {outcome.found}\n    " + "\n    ".join(outcome.story), flush=True)


def _begin(servers: Servers) -> None:
    global _servers
    _servers = servers


@contextmanager
def _started(sinks: Sequence[str]) -> Iterator[Servers]:
    """The servers that these sinks need."""
    with ExitStack() as ends:
        postgres, kafka = None, ""
        if "Postgres" in sinks:
            server = postgres_server.PostgresServer()
            ends.callback(server.stop)
            server.start()
            postgres = PostgresAddress(server.dsn, server.password)
        if "Kafka" in sinks:
            broker = kafka_broker.KafkaBroker()
            ends.callback(broker.stop)
            broker.start()
            kafka = broker.servers
        yield Servers(postgres, kafka)


def runnable(sinks: Sequence[str]) -> list[str]:
    """Those whose packages and programs are here; the others are named."""
    missing = {}
    if importlib.util.find_spec("deltalake") is None:
        missing["Delta"] = missing["DeltaUpserts"] = "the package deltalake is not installed (extra delta)"
    if importlib.util.find_spec("pyiceberg") is None:
        missing["Iceberg"] = missing["IcebergUpserts"] = "the package pyiceberg is not installed (extra iceberg)"
    if importlib.util.find_spec("psycopg") is None:
        missing["Postgres"] = "the package psycopg is not installed (extra postgres)"
    elif postgres_server.programs() is None:
        missing["Postgres"] = "there is no PostgreSQL server (apt-get install postgresql)"
    if importlib.util.find_spec("confluent_kafka") is None:
        missing["Kafka"] = "the package confluent-kafka is not installed (extra kafka)"
    elif programs := kafka_broker.missing():
        missing["Kafka"] = f"a Kafka broker needs {programs}"
    for sink in sinks:
        if sink in missing:
            print(f"not run: {sink}: {missing[sink]}", flush=True)
    return [sink for sink in sinks if sink not in missing]


def verdict(outcomes: Sequence[Outcome]) -> str:
    """The last line."""
    lost, duplicated, stuck = (
        sum(bool(getattr(outcome.found, what)) for outcome in outcomes) for what in ("lost", "duplicated", "stuck")
    )
    return f"crash-matrix: {len(outcomes)} cases, {lost} lost, {duplicated} duplicated, {stuck} stuck"


def main(argv: Sequence[str] | None = None) -> int:
    """0: every case is right."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--only", choices=("in_process", "spark"), help="one of the two runners; default: both")
    parser.add_argument("--sinks", default=",".join(SINKS), help="comma-separated; default: all")
    parser.add_argument("--every", type=int, default=1, help="in process: run one case of so many")
    parser.add_argument("--workers", type=int, default=2, help="in process: processes")
    arguments = parser.parse_args(argv)
    sinks = runnable(arguments.sinks.split(","))
    outcomes: list[Outcome] = []
    if arguments.only != "spark":
        outcomes += in_process(sinks, arguments.every, arguments.workers)
    if arguments.only != "in_process":
        from crash_on_spark import on_spark

        with _started(sinks) as servers:
            outcomes += on_spark([sink for sink in sinks if sink != "Collect"], servers)
    print(verdict(outcomes))
    return 0 if all(outcome.found.is_right for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
