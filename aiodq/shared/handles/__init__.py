"""The public objects of a shared store: a `Store`, `Topic`, `Channel` and `Queue` that ask the owner.

Waiting, taking and settling are inherited: that code calls an engine, in whose place there is an object that asks the
owner. Methods that need more of an engine are overridden here.
"""
