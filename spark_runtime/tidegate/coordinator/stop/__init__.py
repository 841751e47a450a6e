"""How a job ends: final snapshot, suspend, drain, and the answers to a stop (S7). Pure."""
