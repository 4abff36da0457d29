"""All verbs that write, in random order, on a disk whose calls fail, by one process or by several of which some end.

Nobody is told a lie, and opening again heals.
"""
