"""One seed, with what happened in it."""

from __future__ import annotations

from collections.abc import Iterator

from simulator.scheduler import START_MS
from simulator.world import Report, World


def replay(seed: int) -> int:
    """Run `seed`, with everything the runtime prints; then its graph, its decision log and the verdict."""
    world = World(seed)
    report = world.run()
    for line in told(world, report):
        print(line)
    return 1 if report.violations else 0


def told(world: World, report: Report) -> Iterator[str]:
    """The story of a simulation that has been run."""
    yield f"seed {report.seed}: {world.describe()}"
    for node in world.workload.graph.nodes:
        inputs = ", ".join(f"{edge.upstream} ({edge.exchange})" for edge in node.inputs)
        yield f"  node {node.node_id} {node.uid} <- {inputs}" if inputs else f"  node {node.node_id} {node.uid}"
    for at_ms, entry in world.checkers.timeline:
        shown = {key: value for key, value in entry.data.items() if key not in ("subtasks", "metrics", "traceback")}
        yield f"  {at_ms - START_MS:6d} ms  g{entry.generation} {entry.run_id or '-':5} {entry.kind} {shown}"
    yield f"  faults: {dict(report.faults)}"
    yield f"  events: {dict(report.events)}"
    yield f"  {report.steps} steps"
    for what in report.violations:
        yield f"VIOLATION {what}"
    yield f"sim: 1 seeds, {sum(report.faults.values())} faults, {len(report.violations)} violations"
