"""Messages on their way into the log: checked, and gathered in the open batch."""
