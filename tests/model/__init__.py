"""All verbs of the library in random order, in each mode, against a plain model."""
