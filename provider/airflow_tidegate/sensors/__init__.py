"""Sensors that read the decision log and the status hint."""
