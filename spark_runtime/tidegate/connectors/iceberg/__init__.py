"""The Iceberg source and sink."""
