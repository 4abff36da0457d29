"""go-diskqueue's files: what is read of them, and that they are written to the byte."""
