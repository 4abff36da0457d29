"""Frames as numpy and Arrow arrays; only here does the format import the extra `arrow`."""
