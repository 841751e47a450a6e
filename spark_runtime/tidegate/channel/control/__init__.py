"""Control messages between driver and slots, and their connections."""
