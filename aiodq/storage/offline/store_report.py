"""What a verification says of a store and of each of its files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

__all__ = ["FileReport", "Finding", "Kind", "Severity", "StoreReport"]

Severity: TypeAlias = Literal["damage", "loss", "note"]
"""`damage`: not as it was written, and `repair_store` can settle it unless it is to be done `by_hand`. `loss`: messages
that are gone, settled before. `note`: nothing wrong, such as an unfinished write or a file left over from one."""

Kind: TypeAlias = Literal[
    "store",
    "segment",
    "topic",
    "watermark",
    "checkpoint",
    "journal",
    "transactions",
    "commit",
    "staged",
    "hold",
    "lock",
    "temporary",
    "quarantined",
    "unknown",
]


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding about a file.

    Attributes:
        severity: see `Severity`.
        path: the file.
        position: the byte at which it begins.
        reason: as text.
        first, stop: the offsets it cost; equal if none, or if they are not known.
        by_hand: whether it is damage that `repair_store` leaves to an administrator.
    """

    severity: Severity
    path: str
    position: int
    reason: str
    first: int = 0
    stop: int = 0
    by_hand: bool = False


@dataclass(frozen=True, slots=True)
class FileReport:
    """The report on one file.

    Attributes:
        path: the file.
        kind: what it is.
        topic: the topic it belongs to; empty if it belongs to the store.
        bytes: its size.
        records: messages, channel operations, transactions, or 0.
        findings: what was found about it.
    """

    path: str
    kind: Kind
    topic: str
    bytes: int
    records: int = 0
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True)
class StoreReport:
    """The report on a whole store.

    Attributes:
        path: its directory.
        files: one report per file.
    """

    path: str
    files: tuple[FileReport, ...]

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All findings."""
        return tuple(finding for file in self.files for finding in file.findings)

    @property
    def damages(self) -> tuple[Finding, ...]:
        """The findings that require a repair, by `repair_store` or by hand."""
        return tuple(finding for finding in self.findings if finding.severity == "damage")

    @property
    def losses(self) -> tuple[Finding, ...]:
        """The findings about messages that are gone for good."""
        return tuple(finding for finding in self.findings if finding.severity == "loss")

    @property
    def ok(self) -> bool:
        """Whether there is no damage."""
        return not self.damages

    @property
    def bytes(self) -> int:
        """The total size of the files."""
        return sum(file.bytes for file in self.files)

    @property
    def records(self) -> int:
        """The number of messages that can be read."""
        return sum(file.records for file in self.files if file.kind == "segment")
