"""The user's API: a Pipeline and its streams, lazily building a JobGraph."""
