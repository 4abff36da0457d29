"""Dead letters: messages that a channel has given up, with the reasons."""
