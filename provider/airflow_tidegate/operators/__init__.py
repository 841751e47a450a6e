"""Operators, grouped by families of verbs."""
