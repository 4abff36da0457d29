"""How an owner handles a client's requests: puts, transactions, lendings, calls.

Below that are two rooms: `lent`, what clients hold, and `owner_state`, what the owner keeps for all of them.
"""
