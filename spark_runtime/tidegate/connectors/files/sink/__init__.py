"""Sinks of files: staging, publishing, rewinds."""
