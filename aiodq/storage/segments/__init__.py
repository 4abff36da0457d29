"""A topic's segment files: their names, their headers and footers, and the frames in between."""
