"""What stands for the transactions of a store that this process does not own: it has none."""

from __future__ import annotations

from typing import Final, NoReturn

from aiodq.errors import ExclusiveOnlyError

__all__ = ["NO_TRANSACTIONS", "NoTransactions", "only_exclusive"]


def only_exclusive(what: str, instead: str = "") -> ExclusiveOnlyError:
    """Return the error for what cannot be asked of an owner."""
    return ExclusiveOnlyError(
        f'{what} cannot be used yet in a store that is open in mode "shared" or "client"'
        + (f": {instead}" if instead else ', only in mode "exclusive"')
    )


class NoTransactions:
    """As `OpenTransactions`."""

    @property
    def host(self) -> NoReturn:
        """Say that there are none.

        Raises:
            ExclusiveOnlyError: always.
        """
        raise only_exclusive("a transaction")

    def current(self) -> None:
        """Return the one whose block the running task is in: none."""


NO_TRANSACTIONS: Final = NoTransactions()
