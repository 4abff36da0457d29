"""Delivery as state machines: inputs and offsets in, effects out. No I/O, no clock, no event loop."""
