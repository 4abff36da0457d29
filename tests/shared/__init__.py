"""Many processes on one store: how they find each other, what they say, and what becomes of it."""
