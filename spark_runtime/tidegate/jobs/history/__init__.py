"""Views derived from the decision log: checkpoints, verdicts, rewinds, statistics."""
