"""`aiodq demo`: durability to look at.

Several producers put every line of the standard library's sources; their process is killed with SIGKILL half-way. The
store is opened again, the producers go on where they were, consumers take everything, and a proof holds what they got
against the sources.
"""
