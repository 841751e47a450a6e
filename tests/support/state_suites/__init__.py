"""What every state back end must do: suites of tests, and models to compare a back end with."""
