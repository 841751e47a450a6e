"""The format of snapshots: metadata, streams of state, files, in-flight records."""
