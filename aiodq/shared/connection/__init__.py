"""The connection of a process to a store's owner: how it is found, and what outlives one owner.

`link` holds it together. Below it are rooms: `finding` the owner, the `wires` to it, what is `sent`, what is `opened`.
"""
