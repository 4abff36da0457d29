"""Everything durable that is not a message: channels, transactions, topic descriptions, holds."""
