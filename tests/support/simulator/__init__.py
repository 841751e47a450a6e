"""The simulator: whole jobs with their real coordinator, log, slots and subtasks, in one thread, on a virtual clock,
with crashes, zombies and a faulty store, all of it decided by one seed.

`python -m simulator --seeds 2000` runs it; `docs/protocol.md` says what is simulated and what is
checked.
"""
