"""Files that `tidegate gc` and a starting driver delete (S2.3)."""
