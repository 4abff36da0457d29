"""Segments written beside a store and taken over by its owner."""
