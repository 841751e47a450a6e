"""Formats of records that brokers and logs carry: bytes to columns, and columns to bytes."""
