"""Windows and sessions: grids, panes in memory or in a back end, firing, late rows."""
