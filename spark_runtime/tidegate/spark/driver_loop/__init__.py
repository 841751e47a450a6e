"""The driver's loops on Spark, and what they do besides runs: commands, status, deletions."""
