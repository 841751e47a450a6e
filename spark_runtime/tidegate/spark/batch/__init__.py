"""Execution of batch stages as Spark stages. `plan` divides the graph into stages."""
