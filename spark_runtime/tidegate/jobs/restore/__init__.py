"""Checks of a snapshot against a pipeline, before a restore."""
