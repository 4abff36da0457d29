"""`aiodq demo`: a demonstration of durability.

Several producers put every line of the standard library's sources; their process is killed with SIGKILL half-way. The
store is opened again, the producers continue where they were, consumers take everything, and a proof compares what they
got with the sources.
"""
