"""How subtasks exchange records and events, and how driver and slots exchange control messages."""
