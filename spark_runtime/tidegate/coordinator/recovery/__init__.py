"""The snapshot that a run starts from, and what a restore has to do: rewinds, forks, quarantine (S9.3)."""
