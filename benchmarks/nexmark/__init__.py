"""Nexmark: events of an auction house, computed from their numbers, and queries over them in the public API."""
