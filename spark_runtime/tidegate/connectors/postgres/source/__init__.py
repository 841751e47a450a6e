"""The PostgreSQL source: parallel scans, and change data capture by logical replication."""
