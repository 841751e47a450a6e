"""The back end on RocksDB."""
