"""Base classes and arguments of the functions and processes that users write."""
