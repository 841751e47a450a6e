"""Sources of files: listing, formats, bad records, positions."""
