"""Launchers, which start drivers on this machine or on a cluster, and the agent. `jobs.launches` has the records of
launches."""
