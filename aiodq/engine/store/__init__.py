"""The engine of a store as a whole: opening it, what is in it, what is deleted, and its end."""
