"""The pinned code of a pipeline: source files and packs."""
