"""Triggers: one class for each kind of wait."""
