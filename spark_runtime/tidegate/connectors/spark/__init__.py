"""Sources and sinks that Spark itself reads and writes."""
