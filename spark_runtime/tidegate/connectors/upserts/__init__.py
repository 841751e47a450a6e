"""Upserts by key for sinks whose tables consist of files: the newest state of each key, staged beside its rows."""
