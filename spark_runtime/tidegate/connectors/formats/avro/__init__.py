"""Avro by compiled kernels: schemas, their resolution to programs, and the kernels that run these."""
