"""The driver between runs: restarts, commands, lost slots and owners (S9.1, S9.4). Pure."""
