"""Loads a pipeline from its source, and checks the arguments of its function."""
