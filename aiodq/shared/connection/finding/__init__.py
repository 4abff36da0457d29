"""How the owner of a store is found: by a socket in the store's directory, which is watched over."""
