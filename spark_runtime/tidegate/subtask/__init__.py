"""The code that runs in a slot: the subtask, the slot's loop, and alignment, watermarks and lifecycle as pure parts."""
