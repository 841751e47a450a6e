"""What runs in a slot: alignment, watermarks and end of job as pure parts, the subtask, and the slot's loop."""
