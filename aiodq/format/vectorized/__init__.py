"""Frames as numpy and Arrow arrays; the only part of the format that imports the extra `arrow`."""
