"""Protobuf: descriptors, their equivalents in Arrow, and columns of messages."""
