"""User API: a Pipeline and its streams, which build a JobGraph lazily."""
