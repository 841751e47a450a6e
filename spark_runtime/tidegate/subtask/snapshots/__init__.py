"""Snapshots of one subtask: unaligned barriers, in-flight records, writing of state."""
