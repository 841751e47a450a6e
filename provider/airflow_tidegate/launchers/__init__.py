"""Ways to bring a Spark driver up."""
