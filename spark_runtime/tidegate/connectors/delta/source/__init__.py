"""The Delta Lake source."""
