"""Runs the pure parts on Spark: session, barrier stage, slot entry point, driver."""

from tidegate.extras import require_runtime

# The first import of a driver and a slot: a missing package is reported in one line of their logs.
require_runtime("a driver or slot")
