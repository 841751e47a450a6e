"""Verbs that start, inspect and command jobs."""
