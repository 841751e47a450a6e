"""Event time: watermarks, calendars, late rows."""
