"""The back end in memory."""
