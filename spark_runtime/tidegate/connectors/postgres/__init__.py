"""The PostgreSQL sink: staging tables, commits with retries, quarantine."""
