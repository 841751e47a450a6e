"""The pure state machines of S1, S2 and S9, and the I/O shell around them."""
