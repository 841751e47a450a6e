"""Keys: types, canonical bytes, hashes, indexes."""
