"""The Kafka sink: rows staged in files, one short transaction of the broker for each commit."""
