"""What is known of a topic besides its messages: its description, and the options stored there."""
