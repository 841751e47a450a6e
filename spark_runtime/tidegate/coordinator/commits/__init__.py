"""When sinks may commit: completed checkpoints, and verdicts with a commit gate (S7.4, S7.8). Pure."""
