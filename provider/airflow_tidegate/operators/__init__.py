"""Operators: one module for each family of verbs."""
