"""Acks and puts that are done together or not at all."""
