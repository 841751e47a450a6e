"""The shell that runs the pure parts on Spark: session, barrier stage, slot entry point, driver."""
