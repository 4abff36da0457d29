"""Where a channel's messages come from, and which of them it delivers."""
