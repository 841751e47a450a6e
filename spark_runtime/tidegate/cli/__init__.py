"""The command line `tidegate`. docs/cli.md describes it."""
