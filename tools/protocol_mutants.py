"""Ways to break the protocol, each in one place. Read by tools/sim_mutants.py."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """One defect.

    Attributes:
        name: what is broken.
        rule: the rule of docs/semantics.md that it breaks.
        module: dotted name.
        before: a piece of the module's source, there exactly once.
        after: what stands there instead.
        simulated: the simulator is tried first.
        tests: paths below tests/, tried when no seed notices.
    """

    name: str
    rule: str
    module: str
    before: str
    after: str
    simulated: bool = True
    tests: tuple[str, ...] = ()


MUTANTS = (
    # ------------------------------------------------------------ alignment
    Mutant(
        "no alignment: channels that delivered the barrier go on",
        "S3.2",
        "tidegate.subtask.subtask",
        "self._inputs.ports[channel].blocked = True",
        "pass",
    ),
    Mutant(
        "a closed channel that delivered its barrier counts twice",
        "S3.5",
        "tidegate.subtask.alignment",
        'alignment.phase == "aligning" and len(alignment.arrived | self._closed) == self._channels',
        'alignment.phase == "aligning" and len(alignment.arrived) + len(self._closed) >= self._channels',
        simulated=False,
        tests=("unit/subtask/test_alignment.py",),
    ),
    Mutant(
        "a closed channel never counts as having delivered",
        "S3.5",
        "tidegate.subtask.alignment",
        'alignment.phase == "aligning" and len(alignment.arrived | self._closed) == self._channels',
        'alignment.phase == "aligning" and len(alignment.arrived) == self._channels',
        simulated=False,
        tests=("unit/subtask/test_alignment.py",),
    ),
    Mutant(
        "an abort unblocks nothing",
        "S2.2",
        "tidegate.subtask.subtask",
        "            if isinstance(action, UnblockAll):\n"
        "                self._inputs.unblock()\n"
        "        self._drop_checkpoint(checkpoint_id)",
        "            pass\n        self._drop_checkpoint(checkpoint_id)",
        simulated=False,
        tests=("unit/subtask",),
    ),
    Mutant(
        "a barrier is not sent on",
        "S3.6",
        "tidegate.subtask.subtask",
        "        yield barrier\n",
        "        yield from ()\n",
    ),
    Mutant(
        "state is frozen before pre-aggregates are flushed",
        "S3.6",
        "tidegate.subtask.subtask",
        """        if not self._restored_finished:
            yield from self._chain.prepare_snapshot(checkpoint_id)
        yield barrier
""",
        "        yield barrier\n",
    ),
    Mutant(
        "the barrier leaves before the flush",
        "S3.6",
        "tidegate.subtask.subtask",
        """        if not self._restored_finished:
            yield from self._chain.prepare_snapshot(checkpoint_id)
        yield barrier
""",
        """        yield barrier
        if not self._restored_finished:
            yield from self._chain.prepare_snapshot(checkpoint_id)
""",
    ),
    Mutant(
        "at-least-once loses the older alignment to the newer barrier",
        "S3.3",
        "tidegate.subtask.alignment",
        "        if self._exactly_once and len(self._current) > 1:\n",
        "        if len(self._current) > 1:\n",
        simulated=False,
        tests=("unit/subtask/test_alignment.py",),
    ),
    # ------------------------------------------------------------ unaligned
    Mutant(
        "unaligned: what is processed before the last barrier comes is not captured",
        "S3.7",
        "tidegate.subtask.inputs",
        "        if element is not None and number in self._recording:\n",
        "        if False:\n",
    ),
    Mutant(
        "unaligned: of merged batches only the first is captured",
        "S3.7",
        "tidegate.subtask.inputs",
        "                element = self._poll(number)\n                assert",
        "                element = port.channel.poll()\n                assert",
        tests=("unit/subtask/test_merged_batches.py",),
    ),
    Mutant(
        "merging takes records from a channel that waits for the barriers of others",
        "S3.2",
        "tidegate.subtask.inputs",
        "            if port.blocked or port.ended or (gathered",
        "            if port.ended or (gathered",
        tests=("unit/subtask/test_merged_batches.py",),
    ),
    Mutant(
        "unaligned: what is queued when the barrier overtakes it is not captured",
        "S3.7",
        "tidegate.subtask.snapshots.in_flight_capture",
        "                    self._captures[checkpoint_id].add(channel, element)\n",
        "                    pass\n",
    ),
    Mutant(
        "unaligned: records queued after a polled barrier are captured, too",
        "S3.7",
        "tidegate.subtask.alignment",
        "            if channel in alignment.arrived or channel in self._closed:\n",
        "            if channel in self._closed:\n",
    ),
    Mutant(
        "unaligned: the replay is forgotten by the next checkpoint",
        "S3.7",
        "tidegate.subtask.inputs",
        "        return [*self._replay, *self._gathered]\n",
        "        return [*self._gathered]\n",
        tests=(
            "unit/subtask/test_unaligned_subtask.py",
            "unit/subtask/test_deployed_replay.py",
            "unit/in_process/test_unaligned_checkpoints.py",
        ),
    ),
    Mutant(
        "unaligned: batches that arrived between the turns of an operator are not captured",
        "S3.7",
        "tidegate.subtask.inputs",
        "        return [*self._replay, *self._gathered]\n",
        "        return list(self._replay)\n",
        simulated=False,
        tests=("unit/subtask/test_merged_batches.py",),
    ),
    Mutant(
        "unaligned: channel state is not replayed at another parallelism",
        "S3.7",
        "tidegate.snapshot.channel_state",
        "        elif isinstance(element, pa.RecordBatch):\n",
        "        elif False:\n",
        tests=("unit/snapshot/test_channel_state.py",),
    ),
    Mutant(
        "dropping a checkpoint that was only announced unblocks an older alignment",
        "S3.2",
        "tidegate.subtask.alignment",
        'dropped.phase == "aligning" and bool(dropped.arrived)',
        'dropped.phase == "aligning"',
        tests=("unit/subtask/test_unaligned_alignment.py",),
    ),
    # ------------------------------------------------------------ watermarks and ends
    Mutant(
        "the watermark is the newest of the inputs, not the oldest",
        "S4.4",
        "tidegate.subtask.watermarks",
        "        low = min((t for",
        "        low = max((t for",
    ),
    Mutant(
        "idleness passes the rows that a join withholds",
        "S4.4",
        "tidegate.subtask.watermarks",
        "idle = not withheld and (silent or self.all_idle)",
        "idle = silent or self.all_idle",
        simulated=False,
        tests=("unit/subtask/test_withheld_rows.py",),
    ),
    Mutant(
        "a subtask ends without waiting for its final snapshot",
        "S7.3",
        "tidegate.subtask.lifecycle",
        "done = self._final_done or not self._wait_for_final",
        "done = True",
    ),
    Mutant(
        "a stop waits for the final snapshot and finds the job ended",
        "S7.7",
        "tidegate.coordinator.checkpointing.trigger",
        "if situation.ending and not (situation.only_final and request.kind in FORCED_KINDS):",
        "if situation.ending:",
        tests=("unit/coordinator/test_ending.py",),
    ),
    Mutant(
        "a stop beside the final snapshot leaves that to end the job",
        "S7.7",
        "tidegate.coordinator.coordinator",
        'for final in self._pending.finals() if request.kind == "stop-savepoint" else ():',
        "for final in ():",
        tests=("unit/coordinator/test_ending.py",),
    ),
    Mutant(
        "any completion ends a row of failed checkpoints",
        "S2.2",
        "tidegate.coordinator.coordinator",
        'if request.kind == "checkpoint" and checkpoint_id > self._failed_id:',
        "if True:",
        simulated=False,
        tests=("unit/coordinator/test_completing.py",),
    ),
    Mutant(
        "an aborted savepoint keeps its files",
        "S2.3",
        "tidegate.coordinator.checkpointing.pending_snapshots",
        "return [SendAbort(checkpoint_id, reason, code, counts), DeleteCheckpoint(checkpoint_id, self.path)]",
        'own = self.request.kind in ("checkpoint", "final")\n'
        "        files = [DeleteCheckpoint(checkpoint_id, self.path)] if own else []\n"
        "        return [SendAbort(checkpoint_id, reason, code, counts), *files]",
        simulated=False,
        tests=("unit/coordinator/test_completing.py", "unit/in_process/test_unfinished_savepoints.py"),
    ),
    Mutant(
        "what others put into the folder of an aborted savepoint goes too",
        "S2.3",
        "tidegate.coordinator.garbage.unfinished_savepoints",
        'if "/" not in inside and written in inside and inside.endswith(SUFFIXES):',
        "if True:",
        simulated=False,
        tests=("unit/coordinator/test_offline_garbage.py",),
    ),
    Mutant(
        "checkpoints start however many retired ones are not deleted",
        "S2.3",
        "tidegate.coordinator.checkpointing.trigger",
        'if request.kind == "checkpoint" and situation.deletes_too_slowly:',
        "if False:",
        tests=("unit/coordinator/test_triggering.py",),
    ),
    Mutant(
        "what is being deleted does not count as overdue",
        "S2.3",
        "tidegate.spark.driver_loop.checkpoint_deletion",
        "return sum(entry.counts for entry in self._in_hand) + sum(",
        "return 0 * len(self._in_hand) + sum(",
        tests=("unit/spark/test_retiring.py",),
    ),
    Mutant(
        "a subtask closes while it writes its part of another snapshot",
        "S7.3",
        "tidegate.subtask.lifecycle",
        "done and self.all_partitions_ended and not self._unwritten",
        "done and self.all_partitions_ended",
    ),
    Mutant(
        "without an interval a subtask ends without waiting, so that a stop races with it",
        "S7.3",
        "tidegate.coordinator.checkpoint_mode",
        'options.checkpoint_mode != "off"\n',
        "options.checkpoint_interval is not None\n",
        tests=("unit/in_process/test_stop_recovery.py",),
    ),
    Mutant(
        "subtasks receive the order to finish while a snapshot is pending",
        "S7.3",
        "tidegate.coordinator.coordinator",
        "return not (self._pending or self._claiming or len(self._queue) or self._ending_is_served())",
        "return True",
        simulated=False,
        tests=("unit/coordinator/test_ending.py",),
    ),
    Mutant(
        "any snapshot counts as final, also one from before the end of data",
        "S7.3",
        "tidegate.subtask.lifecycle",
        '        if self._phase == "ended":\n            self._snapshots_after_end.add(checkpoint_id)',
        "        self._snapshots_after_end.add(checkpoint_id)",
    ),
    Mutant(
        "a stop does not end the data before its snapshot",
        "S7.2",
        "tidegate.subtask.subtask",
        'if barrier.stop is not None and self._lifecycle.phase == "running":',
        "if False:",
    ),
    Mutant(
        "finish() is left out at a drain",
        "S7.1",
        "tidegate.subtask.subtask",
        "            yield from self._chain.finish()\n        yield EndOfData(drain)",
        "        yield EndOfData(drain)",
        simulated=False,
        tests=("unit/subtask/test_snapshot_step.py",),
    ),
    # ------------------------------------------------------------ state and commits
    Mutant(
        "an acknowledgement is sent before the state is durable",
        "S3.6",
        "tidegate.subtask.snapshots.snapshot_writer",
        """        handle = self._folder(place).store(
            self._name(uid, index, "state"), encode_parts(parts), tuple(sorted({part.kind for part in parts}))
        )
""",
        """        import hashlib
        data, kinds = encode_parts(parts), tuple(sorted({part.kind for part in parts}))
        name = self._name(uid, index, "state")
        self._writers.submit(self._folder(place).store, name, data, kinds)
        handle = StateHandle(name, None, len(data), hashlib.sha256(data).hexdigest(), kinds)
""",
    ),
    Mutant(
        "uploads of a checkpoint that has not completed are relied on",
        "S5.2",
        "tidegate.subtask.snapshots.shared_blobs",
        "            self._pending.setdefault(checkpoint_id, {})[place] = [file for file in files if file.shared]",
        "            self._completed = {**self._completed, place: [file for file in files if file.shared]}",
        simulated=False,
        tests=("unit/subtask/test_snapshot_writer.py",),
    ),
    Mutant(
        "a shared file goes while a checkpoint is on its way that may use it",
        "S2.3",
        "tidegate.coordinator.garbage.shared_files",
        "held.get(name, pending) & pending",
        "frozenset[int]()",
        simulated=False,
        tests=("unit/coordinator/test_shared_files.py",),
    ),
    Mutant(
        "no commit of the restored snapshot's transactions",
        "S7.4",
        "tidegate.connectors.sink_operator",
        "            covered = [p for p in open_now if permit is not None and "
        "p.checkpoint_id <= permit.checkpoint_id]\n",
        "            covered = []\n            self._pending.clear()\n",
    ),
    Mutant(
        "recovery aborts what a newer run has staged",
        "S9.2",
        "tidegate.connectors.transactions",
        "(made.generation, made.run_id) < (ctx.generation, ctx.run_id)",
        "(made.generation, made.run_id) != (ctx.generation, ctx.run_id)",
        simulated=False,
        tests=("unit/connectors/test_sinks_conform.py",),
    ),
    Mutant(
        "a Delta transaction is looked for in one reading of the log and appended to another",
        "S7.4",
        "tidegate.connectors.delta.delta_writer",
        "problem = self._append(table, made, handle)",
        "problem = self._append(self._log.find_or_create(), made, handle)",
        simulated=False,
        tests=("unit/connectors/test_delta_sink.py",),
    ),
    Mutant(
        "a Delta transaction earlier than the last one counts as committed",
        "S7.4",
        "tidegate.connectors.delta.delta_writer",
        "if last == made.checkpoint_id:",
        "if last is not None and last >= made.checkpoint_id:",
        simulated=False,
        tests=("unit/connectors/test_sinks_conform.py",),
    ),
    Mutant(
        "a rewind of files removes those before their markers",
        "S9.3",
        "tidegate.connectors.files.sink.file_rewind",
        "        for marker in markers:\n            self._remove(marker)\n",
        "        for path in list(self._files()):\n            self._remove(path)\n"
        "        for marker in markers:\n            self._remove(marker)\n",
        simulated=False,
        tests=("unit/connectors/test_file_rewind.py",),
    ),
    Mutant(
        "a rewind of files leaves zombies what they may publish",
        "S9.3",
        "tidegate.connectors.files.sink.file_sink",
        "            writer.recover(checkpoint_id, pending)\n",
        "",
        simulated=False,
        tests=("unit/connectors/test_file_rewind.py",),
    ),
    Mutant(
        "a rewind of files reaches what a newer driver has published",
        "S9.2",
        "tidegate.connectors.files.sink.file_rewind",
        "return made is not None and self._checkpoint_id < made[1] < self._before",
        "return made is not None and self._checkpoint_id < made[1]",
        simulated=False,
        tests=("unit/connectors/test_sinks_conform.py",),
    ),
    Mutant(
        "sinks take rows back although nobody has decided it",
        "S9.3",
        "tidegate.coordinator.recovery.sink_rewind",
        "    record()\n",
        "",
        tests=("unit/in_process/test_going_back.py",),
    ),
    Mutant(
        "a rewind that was begun is left to those who wish it",
        "S9.3",
        "tidegate.coordinator.recovery.rewind",
        "    takes_back = is_recorded or (mode",
        "    takes_back = (mode",
        simulated=False,
        tests=("unit/coordinator/test_rewind.py", "unit/in_process/test_going_back.py"),
    ),
    Mutant(
        "what was taken back is restored when it is named",
        "S9.3",
        "tidegate.coordinator.recovery.rewind",
        "        if checkpoint_id in rewind.gone:\n",
        "        if False:\n",
        simulated=False,
        tests=("unit/coordinator/test_rewind.py", "unit/in_process/test_going_back.py"),
    ),
    Mutant(
        "a completion commits the transactions of later checkpoints too",
        "S7.4",
        "tidegate.connectors.sink_operator",
        "            covered = [p for p in self._pending if p.checkpoint_id <= permit.checkpoint_id "
        "and not p.withheld]\n",
        "            covered = list(self._pending)\n",
    ),
    Mutant(
        "an intermediate savepoint commits",
        "S2.4",
        "tidegate.coordinator.coordinator",
        """        if request.kind != "savepoint":
            self._final""",
        """        if True:
            self._final""",
    ),
    # ------------------------------------------------------------ coordinator
    Mutant(
        "complete with one acknowledgement missing",
        "S2.1",
        "tidegate.coordinator.checkpointing.pending_snapshots",
        "return len(self.acks) == len(self.plan.wait_for)",
        "return len(self.acks) == max(1, len(self.plan.wait_for) - 1)",
    ),
    Mutant(
        "an acknowledgement of an old attempt counts",
        "S2.2",
        "tidegate.coordinator.coordinator",
        "if pending is None or ack.run_id != self._run_id or not pending.acknowledge(ack, now_ms):",
        "if pending is None or not pending.acknowledge(ack, now_ms):",
        simulated=False,
        tests=("unit/coordinator/test_coordinator.py", "unit/coordinator/test_completing.py"),
    ),
    Mutant(
        "the min pause counts from the trigger",
        "S1.2",
        "tidegate.coordinator.coordinator",
        "        self._last_completed_ms = now_ms\n",
        "        self._last_completed_ms = pending.triggered_ms\n",
        simulated=False,
        tests=("unit/coordinator/test_coordinator.py", "unit/coordinator/test_triggering.py"),
    ),
    Mutant(
        "only sources are triggered, also when they have finished",
        "S1.3",
        "tidegate.coordinator.checkpointing.checkpoint_plan",
        "                if fed:\n",
        "                if not chain.upstream:\n",
        simulated=False,
        tests=("unit/coordinator/test_coordinator.py",),
    ),
    Mutant(
        "metadata after the decision",
        "S2.1",
        "tidegate.coordinator.job_run",
        """            write_metadata(store, folder, metadata)
        except (TidegateError, OSError) as error:
            return ev.CompletionFailed(complete.checkpoint_id, str(error))
        number = self._append("complete", data)
""",
        """            number = self._append("complete", data)
            write_metadata(store, folder, metadata)
        except (TidegateError, OSError) as error:
            return ev.CompletionFailed(complete.checkpoint_id, str(error))
""",
    ),
    Mutant(
        "a stop is triggered though no savepoint can be written where it is to go",
        "S7.7",
        "tidegate.coordinator.job_run",
        "            problem = self._savepoint_location_problem(request, path)\n",
        "",
        simulated=False,
        tests=("unit/coordinator/test_job_run_log.py",),
    ),
    Mutant(
        "the time limit of a stop is ignored",
        "S7.7",
        "tidegate.coordinator.supervision.supervisor",
        "            return [DeliverToRun(given_up)] if watch.held is None else []",
        "            return []",
        simulated=False,
        tests=("unit/coordinator/test_stop_timeout.py",),
    ),
    Mutant(
        "a stop whose savepoint is complete is taken back when its time is up",
        "S7.7",
        "tidegate.coordinator.coordinator",
        "            return answer_kept_savepoint(event, scene, self._stop.checkpoint_id, self._stop)\n",
        "            return stop_untouched(self._stop.request, scene)\n",
        tests=("unit/coordinator/test_stop_timeout.py",),
    ),
    Mutant(
        "a stop that was given up leaves the run as it is, though data has ended",
        "S7.7",
        "tidegate.coordinator.stop.timeout_answers",
        "        ev.FailRun(reason, stop_given_up=True),\n",
        "",
        tests=("unit/coordinator/test_stop_timeout.py",),
    ),
    Mutant(
        "a failed stop is answered before the job runs again",
        "S7.7",
        "tidegate.coordinator.supervision.supervisor",
        "        if run_over and answer.code == SAVEPOINT_FAILED:\n",
        "        if False:\n",
        simulated=False,
        tests=("unit/coordinator/test_stop_timeout.py",),
    ),
    Mutant(
        "a stop that was withdrawn cancels the job when its time is up",
        "S9.4",
        "tidegate.coordinator.supervision.supervisor",
        "        if judged.wanted:\n",
        "        if True:\n",
        simulated=False,
        tests=("unit/coordinator/test_stop_timeout.py",),
    ),
    Mutant(
        "a stop that was planned too late fails the run",
        "S1.5",
        "tidegate.coordinator.coordinator",
        'afresh = code == "subtask_finished"',
        "afresh = False",
        simulated=False,
        tests=("unit/coordinator/test_stop_timeout.py",),
    ),
    Mutant(
        "checkpoint ids continue from the last completed one",
        "S1.4",
        "tidegate.jobs.history.checkpoints",
        'return 1 + max((d.data["checkpoint_id"] for d in decisions if d.kind == "claim"), default=0)',
        'return 1 + max((d.data["checkpoint_id"] for d in decisions if d.kind == "complete"), default=0)',
    ),
    Mutant(
        "retention deletes the newest instead of the oldest",
        "S2.3",
        "tidegate.coordinator.checkpointing.retention",
        "        keep |= {c.checkpoint_id for c in recovery[-retained:]}\n"
        "        keep |= {c.checkpoint_id for c in own[-1:]}\n",
        "        keep |= {c.checkpoint_id for c in recovery[:retained]}\n",
        simulated=False,
        tests=("unit/coordinator/test_recovery.py", "unit/coordinator/test_garbage.py"),
    ),
    # ------------------------------------------------------------ commit gate
    Mutant(
        "with a commit gate a completion permits the commit",
        "S7.8",
        "tidegate.coordinator.commits.commit_gate",
        "        return [Durable(checkpoint_id, last), *self._pause_sources()]\n",
        "        return [ev.SendPermit(checkpoint_id, 1), Durable(checkpoint_id, last), *self._pause_sources()]\n",
    ),
    Mutant(
        "with a commit gate a restore commits everything in its snapshot",
        "S7.8",
        "tidegate.coordinator.driver_job",
        "permitted = min(verdicts.approved, metadata.checkpoint_id)",
        "permitted = metadata.checkpoint_id",
        tests=("unit/in_process/test_commit_gate_jobs.py",),
    ),
    Mutant(
        "a copy of a snapshot commits checkpoints that waited before it",
        "S7.8",
        "tidegate.coordinator.recovery.restore_point",
        "{*_waiting_checkpoints(taken, checkpoint_id), *verdicts.waiting}",
        "verdicts.waiting",
        simulated=False,
        tests=("unit/in_process/test_commit_gate_jobs.py",),
    ),
    Mutant(
        "what is approved and not committed goes when a cancelled job deletes its checkpoints",
        "S2.3",
        "tidegate.jobs.history.verdicts",
        "            return (*self.uncommitted[-1:], *unmoved)\n",
        "            return tuple(unmoved)\n",
        simulated=False,
        tests=("unit/coordinator/test_commit_gate.py",),
    ),
    Mutant(
        "a checkpoint that waits for a verdict may be deleted",
        "S2.3",
        "tidegate.coordinator.checkpointing.retention",
        "{restored, *pinned}",
        "{restored}",
        simulated=False,
        tests=("unit/coordinator/test_commit_gate.py",),
    ),
    Mutant(
        "a rejected checkpoint stays a restore point",
        "S7.8",
        "tidegate.jobs.history.checkpoints",
        "if view.checkpoint_id not in self.rejected and (below",
        "if (below",
    ),
    Mutant(
        "what came after a rejected checkpoint is not rejected",
        "S7.8",
        "tidegate.jobs.history.checkpoints",
        "checkpoint_id in own if checkpoint_id >= first",
        "checkpoint_id in own if checkpoint_id == first",
        tests=("unit/coordinator/test_commit_gate.py",),
    ),
    Mutant(
        "a sink that has ended finishes though its transactions wait, and they are forgotten",
        "S7.8",
        "tidegate.subtask.commits",
        "        if last or not self._chain.awaits_permit(checkpoint_id):\n",
        "        if True:\n",
        simulated=False,
        tests=("unit/in_process/test_commit_gate_jobs.py",),
    ),
    Mutant(
        "what is approved when subtasks may have finished counts as committed",
        "S7.8",
        "tidegate.coordinator.commits.commit_gate",
        "        if self._is_up and not self.closing:\n",
        "        if self._is_up:\n",
        tests=("unit/coordinator/test_commit_gate.py",),
    ),
    Mutant(
        "a permit is sent before there are slots to hear it",
        "S7.8",
        "tidegate.coordinator.commits.commit_gate",
        "        if self._is_up and not self.closing:\n",
        "        if not self.closing:\n",
        simulated=False,
        tests=("unit/coordinator/test_commit_gate.py",),
    ),
    Mutant(
        "a restore commits what went to quarantine",
        "S7.8",
        "tidegate.coordinator.driver_job",
        "        if verdicts.withheld:\n",
        "        if False:\n",
        tests=("unit/in_process/test_quarantine_jobs.py",),
    ),
    Mutant(
        "a permit publishes what is on its way to quarantine",
        "S7.8",
        "tidegate.connectors.sink_operator",
        "p.checkpoint_id <= permit.checkpoint_id and not p.withheld]",
        "p.checkpoint_id <= permit.checkpoint_id]",
        tests=("unit/connectors/test_sink_operator.py",),
    ),
    Mutant(
        "a snapshot forgets what is on its way to quarantine",
        "S7.8",
        "tidegate.connectors.sink_operator",
        "            covered = tuple(self._pending)\n",
        "            covered = tuple(p for p in self._pending if not p.withheld)\n",
        tests=("unit/connectors/test_sink_operator.py",),
    ),
    Mutant(
        "a rejected checkpoint goes to quarantine without what came after it",
        "S7.8",
        "tidegate.coordinator.commits.ruling",
        "tuple(n for n in verdicts.waiting if n >= wanted)",
        "tuple(n for n in verdicts.waiting if n == wanted)",
        tests=("unit/coordinator/test_quarantine_rulings.py",),
    ),
    Mutant(
        "an approval of another timeline is taken for one of this",
        "S7.8",
        "tidegate.jobs.history.verdicts",
        "(max((min(line[s], other[s]) for s in other if s in line), default=0), number)",
        "(max(other.values(), default=0), number)",
        simulated=False,
        tests=("unit/coordinator/test_commit_gate.py",),
    ),
    # ------------------------------------------------------------ recovery
    Mutant(
        "no fencing: an old driver overwrites the new one's entries",
        "S9.2",
        "tidegate.jobs.decision_log",
        "            self._store.create(path, payload)\n        except AlreadyExistsError:\n            found",
        "            self._store.replace(path, payload)\n        except AlreadyExistsError:\n            found",
    ),
    Mutant(
        "a driver that appends nothing never checks its generation",
        "S9.2",
        "tidegate.coordinator.supervision.supervisor",
        "            actions.append(self._recheck_stop(now_ms))\n",
        "            self._recheck_stop(now_ms)\n",
        simulated=False,
        tests=("unit/coordinator/test_supervision.py",),
    ),
    Mutant(
        "an own entry found after an unclear answer is taken for a foreign one",
        "S9.2",
        "tidegate.jobs.decision_log",
        "            if found is None or found.nonce != entry.nonce:\n                raise\n",
        "            raise\n",
        simulated=False,
        tests=("unit/jobs/test_decision_log.py",),
    ),
    Mutant(
        "an intermediate savepoint is a recovery point",
        "S2.4",
        "tidegate.jobs.history.checkpoints",
        'RECOVERY_KINDS = frozenset({"checkpoint", "final", "stop-savepoint"})',
        'RECOVERY_KINDS = frozenset({"checkpoint", "final", "stop-savepoint", "savepoint"})',
        tests=("unit/coordinator/test_recovery.py",),
    ),
    Mutant(
        "a rescale gives every subtask all keyed rows",
        "S5.5",
        "tidegate.snapshot.redistribution",
        "        tables = [_in_range(table, place.key_groups) for table in tables]\n",
        "        pass\n",
        tests=("unit/snapshot/test_redistribution.py", "unit/in_process/test_rescale.py"),
    ),
    Mutant(
        "a rescale gives every subtask all list rows",
        "S5.5",
        "tidegate.snapshot.redistribution",
        '    if kind == "list" and place.changes:\n',
        "    if False:\n",
        simulated=False,
        tests=("unit/snapshot/test_redistribution.py",),
    ),
    Mutant(
        "what hangs on a drained source counts as finished",
        "S6.2",
        "tidegate.coordinator.checkpointing.finished_operators",
        "if (c, i) in ended and all(",
        "if (c, i) in ended or not all(",
        simulated=False,
        tests=("unit/coordinator/test_finished_operators.py",),
    ),
    Mutant(
        "a snapshot with union state completes though some subtasks have finished",
        "S6.3",
        "tidegate.coordinator.checkpointing.finished_operators",
        "            if 0 < len(some) < len(mine):\n",
        "            if False:\n",
        simulated=False,
        tests=("unit/coordinator/test_finished_operators.py",),
    ),
    Mutant(
        "a source that had finished makes a reader again",
        "S6.2",
        "tidegate.subtask.deployment",
        "ExhaustedReader() if finished else nodes[0]",
        "nodes[0]",
        simulated=False,
        tests=("unit/in_process/test_finished_subtasks.py",),
    ),
    # ------------------------------------------------------------ splits
    Mutant(
        "splits are assigned between the trigger and the barrier",
        "S4.3",
        "tidegate.coordinator.enumeration",
        "if self._behind or self._stopped or self._load.keys() != self._readers:",
        "if self._stopped or self._load.keys() != self._readers:",
    ),
    Mutant(
        "splits that wait for a reader are not part of snapshots",
        "S4.3",
        "tidegate.coordinator.enumeration",
        "EnumerationState(self._state, tuple(self._waiting), self._complete)",
        "EnumerationState(self._state, (), self._complete)",
    ),
    Mutant(
        "an enumerator begins again after a restore",
        "S4.3",
        "tidegate.coordinator.driver_job",
        "EnumerationState.from_json(restored[node.uid]) if node.uid in restored else EnumerationState()",
        "EnumerationState()",
    ),
    Mutant(
        "splits are assigned after the barrier of a stop",
        "S4.3",
        "tidegate.coordinator.enumeration",
        "if self._behind or self._stopped or self._load.keys() != self._readers:",
        "if self._behind or self._load.keys() != self._readers:",
    ),
    Mutant(
        "readers get the last assignment before all splits are found",
        "S4.3",
        "tidegate.coordinator.enumeration",
        "        if self._complete and not self._waiting:\n",
        "        if not self._waiting:\n",
    ),
    Mutant(
        "an aborted snapshot never stops holding assignments back",
        "S4.3",
        "tidegate.coordinator.enumeration",
        "        self._behind.pop(checkpoint_id, None)\n",
        "",
        simulated=False,
        tests=("unit/coordinator/test_enumeration.py",),
    ),
    Mutant(
        "a reader that runs dry without a word gets no further split",
        "S4.3",
        "tidegate.subtask.source",
        " or has_run_dry:",
        ":",
        simulated=False,
        tests=("unit/in_process/test_growing_sources.py",),
    ),
    Mutant(
        "a split on its way to a reader does not count as its own",
        "S4.3",
        "tidegate.coordinator.enumeration",
        "message.open + self._sent[index] - message.received",
        "message.open",
        simulated=False,
        tests=("unit/coordinator/test_enumeration.py",),
    ),
)
