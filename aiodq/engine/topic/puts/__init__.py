"""Puts before they are written: what a put checks, where it waits for room, and what it returns."""
