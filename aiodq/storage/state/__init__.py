"""Everything durable that is no message: channels, transactions, topic descriptions, holds."""
