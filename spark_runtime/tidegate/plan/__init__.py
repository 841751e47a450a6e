"""JobGraph, the user's pipeline as frozen data, and ExecutionPlan, the same divided into chains, subtasks and
channels."""
