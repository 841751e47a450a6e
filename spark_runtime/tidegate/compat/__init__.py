"""Interfaces of other systems on top of tidegate."""
