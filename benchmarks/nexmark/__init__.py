"""Nexmark: an auction house's events, made from their numbers, and queries over them in the public API."""
