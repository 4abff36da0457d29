"""All verbs that write, in random order, on a disk whose calls fail: nobody is told a lie, and opening again heals."""
