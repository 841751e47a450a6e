"""Arrow columns that grow and change in place."""
