"""Verbs that inspect, read and check snapshots."""
