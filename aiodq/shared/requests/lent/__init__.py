"""What clients hold of an owner's channels: in runs, by the numbers they were sent; and what they claim of an owner."""
