"""The owner's end of the socket: connections, and a session for each client."""
