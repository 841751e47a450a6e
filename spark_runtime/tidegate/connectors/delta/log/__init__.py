"""The transaction log of a Delta table, read without delta-rs: any file system, any version, entry by entry."""
