"""Delta Lake: a source and a sink."""
