"""Aggregate functions and their states, one module per family."""
