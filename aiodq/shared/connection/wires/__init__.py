"""The wires between a process and an owner: what a link needs of one, and the one over a socket."""
