"""The rows of the benchmark harness."""
