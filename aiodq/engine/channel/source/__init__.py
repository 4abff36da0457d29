"""The source of a channel's messages, and the filter of those that it delivers."""
