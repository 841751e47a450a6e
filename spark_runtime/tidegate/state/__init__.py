"""Keyed state and state of subtasks: interfaces, back ends, aggregates."""
