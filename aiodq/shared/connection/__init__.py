"""The connection of a process to a store's owner: how it is found, and what outlives one owner."""
