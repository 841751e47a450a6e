"""Sensors over the decision log and the status hint."""
