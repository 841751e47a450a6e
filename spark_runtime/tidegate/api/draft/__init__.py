"""Checks and records of the calls of `Stream` and `Pipeline`: columns, types, uids, places in the user's code."""
