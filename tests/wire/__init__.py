"""The wire protocol of a shared store: its specification, its bytes, and whatever else may come over a socket."""
