"""Writes: tasks stage segments in the store's directory, and one record of the driver commits them all.

Rows become messages in the order of the partitions, and of the rows within each.
"""
