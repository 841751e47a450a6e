"""Virtual time, and processes that can be crashed or stalled at any step they take."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any

from greenlet import getcurrent, greenlet

START_MS = 1_700_000_000_000
"""When every simulation begins, milliseconds since the epoch."""


class Crashed(BaseException):
    """The process has died: nothing after the point where this is raised happens."""


class Scheduler:
    """A queue of calls by virtual time. One seed decides everything."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.now_ms = START_MS
        self.steps = 0
        self._queue: list[tuple[int, int, Process | None, Callable[[], None]]] = []
        self._number = 0
        self._processes: list[Process] = []

    def after(self, delay_ms: float, call: Callable[[], None], process: Process | None = None) -> None:
        """Call `call` in `delay_ms`; not at all when `process` is dead by then, later when it is stalled."""
        self._number += 1
        heapq.heappush(self._queue, (self.now_ms + int(delay_ms), self._number, process, call))

    def run(self, until: Callable[[], bool], *, limit_ms: int, limit_steps: int) -> bool:
        """Make calls until `until` holds; False when a limit comes first or nothing is left to do."""
        end_ms, last_step = self.now_ms + limit_ms, self.steps + limit_steps
        while not until():
            if not self._queue or self.now_ms > end_ms or self.steps > last_step:
                return False
            at_ms, _, process, call = heapq.heappop(self._queue)
            if at_ms > self.now_ms:
                self.now_ms = at_ms
            if process is not None:
                if not process.alive:
                    continue
                if process.stalled_until_ms > self.now_ms:
                    self.after(process.stalled_until_ms - self.now_ms + self.upto(3), call, process)
                    continue
            self.steps += 1
            call()
        return True

    def begun(self, process: Process) -> None:
        """There is a process."""
        self._processes.append(process)

    def close(self) -> None:
        """Unwind every task that is left: a paused one would keep its whole simulation in memory for ever."""
        for process in self._processes:
            process.alive = False
            process.unwind()
        self._processes.clear()
        self._queue.clear()

    def upto(self, most: int) -> int:
        """A random number, 0 to `most`."""
        return int(self.random.random() * (most + 1))

    def chance(self, probability: float) -> bool:
        """True with `probability`."""
        return self.random.random() < probability


class Process:
    """What dies as a whole: a driver or a slot, with all its tasks. A stalled one takes no step until later: to the
    others it looks dead, and it knows nothing of that."""

    def __init__(self, scheduler: Scheduler, name: str) -> None:
        self.scheduler = scheduler
        self.name = name
        self.alive = True
        self.stalled_until_ms = 0
        self.on_death: Callable[[], None] = lambda: None
        self._tasks: set[Task] = set()
        scheduler.begun(self)

    def spawn(self, work: Callable[[], Any], delay_ms: float = 0) -> Task:
        """Run `work` as a task of this process; it may pause."""
        task = Task(self, work)
        self._tasks.add(task)
        self.scheduler.after(delay_ms, task.resume, self)
        return task

    def crash(self) -> None:
        """Die at once, in the middle of whatever is going on. Called by a task of its own, does not return."""
        if not self.alive:
            raise Crashed(self.name)
        self.alive = False
        self.on_death()
        self.unwind()
        if getcurrent() in self._tasks:
            raise Crashed(self.name)

    def unwind(self) -> None:
        """End every task but the one that is running."""
        mine = getcurrent()
        for task in list(self._tasks):
            if task is not mine:
                task.kill()

    def check_alive(self) -> None:
        """Raise Crashed in a process that has died: unwinding code has no effects."""
        if not self.alive:
            raise Crashed(self.name)

    def done(self, task: Task) -> None:
        """`task` has ended."""
        self._tasks.discard(task)


class Task(greenlet):
    """Sequential work of a process, which pauses where it would wait for I/O."""

    def __init__(self, process: Process, work: Callable[[], Any]) -> None:
        super().__init__(self._work)
        self._process = process
        self._do = work

    def _work(self) -> None:
        try:
            self._do()
        except Crashed:
            if self._process.alive:
                raise
        finally:
            self._process.done(self)

    @property
    def process(self) -> Process:
        """Whose task this is."""
        return self._process

    def resume(self) -> None:
        """Go on. Called by the scheduler alone."""
        if not self.dead:
            self.switch()

    def pause(self, delay_ms: float) -> None:
        """Give way for `delay_ms`; called in the task itself."""
        self._process.scheduler.after(delay_ms, self.resume, self._process)
        self.wait()

    def wait(self) -> None:
        """Give way until somebody resumes this task."""
        parent = self.parent
        assert parent is not None
        parent.switch()
        self._process.check_alive()

    def kill(self) -> None:
        """Unwind without effects."""
        if not self.dead:
            if self.gr_frame is None:
                self._process.done(self)  # never started
            else:
                self.throw(Crashed(self._process.name))


class Mutex:
    """For tasks what `threading.RLock` is for threads."""

    def __init__(self) -> None:
        self._holder: Task | None = None
        self._depth = 0
        self._waiting: deque[Task] = deque()

    def __enter__(self) -> None:
        task = current_task()
        assert task is not None, "only tasks hold a mutex"
        while self._holder not in (None, task):
            self._waiting.append(task)
            task.wait()
        self._holder = task
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if self._depth == 0:
            self._holder = None
            if self._waiting:
                task = self._waiting.popleft()
                task.process.scheduler.after(0, task.resume, task.process)


def current_task() -> Task | None:
    """The task that is running; None in the scheduler itself."""
    task = getcurrent()
    return task if isinstance(task, Task) else None
