"""Bulk loads: segments written by others beside a store and adopted by its owner."""
