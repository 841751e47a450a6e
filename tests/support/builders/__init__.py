"""What many tests build: one module per idea. A test says only what it is about; the rest is a default here."""
