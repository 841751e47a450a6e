"""Operators that run process classes of users, with their states and timers."""
