"""Verbs that approve and reject checkpoints."""
