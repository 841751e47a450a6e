"""Checkpoints from the request to the completion or the abort: when they start, what they wait for, what is kept (S1,
S2). Pure."""
