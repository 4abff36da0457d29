"""What a process has open at its owner: topics and channels, their handles, and who is told of them."""
