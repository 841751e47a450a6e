"""Stores of job directories: local disk, S3, memory."""
