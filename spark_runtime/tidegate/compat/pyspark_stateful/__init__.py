"""PySpark's `StatefulProcessor` as an operator."""
