"""The command line: `tidegate ...`. See docs/cli.md."""
