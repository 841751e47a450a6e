"""Aggregates without windows, and what windows and they share."""
