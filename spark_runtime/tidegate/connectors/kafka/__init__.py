"""The Kafka source and sink."""
