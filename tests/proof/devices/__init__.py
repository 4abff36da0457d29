"""Power cuts of a device under a real file system: ext4, xfs and btrfs as the kernel has them.

What a workload did to the simulated disk is done once more to a real file system, which lies on a device that writes
down every write and every flush. Then any number of power cuts are looked at: all that was flushed is there, and of
what came after the last flush any part, torn at sectors. The kernel mounts each of these devices and recovers its file
system as it does after a crash; the store that it then shows is opened and held against what had been promised.

    python -m tests.proof.devices [--file-systems ext4,xfs] [--seed N] [--moments N] [--states N] [WORKLOAD ...]

The seed decides what is done and what is lost. When the kernel writes is its own affair, so that a violation may take
a few runs to come again. Needs root on Linux, FUSE, loop devices, and the file system's mkfs.
"""
