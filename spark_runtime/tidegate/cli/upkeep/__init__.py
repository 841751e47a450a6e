"""Verbs for upkeep: gc, pack, doctor, agent."""
