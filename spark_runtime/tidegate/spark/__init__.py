"""The shell that runs the pure parts on Spark: session, barrier stage, slot entry point, driver."""

from tidegate.extras import require_runtime

# First of all that a driver and a slot import: what is missing is said in one line, in their logs.
require_runtime("a driver or slot")
