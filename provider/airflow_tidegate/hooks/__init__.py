"""Connections to job directories."""
