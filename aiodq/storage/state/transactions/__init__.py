"""The transaction log, and what transactions leave in files beside it."""
