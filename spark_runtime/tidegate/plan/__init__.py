"""JobGraph, the user's pipeline as frozen data, and ExecutionPlan, the same cut into chains, subtasks and channels."""
