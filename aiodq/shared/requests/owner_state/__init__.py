"""What an owner keeps for all its clients: puts and changes in progress, the memory for what waits, what is told of it.

Each client's own part is a level higher, and gets at this through `serving.Owning`.
"""
