"""Sources and sinks, their interfaces and their registry."""
