"""`aiodq verify` and `aiodq repair`."""

import os
from typing import Any

from aiodq.cli.exits import DONE, WRONG
from aiodq.cli.show import Meter, human_bytes, print_json, stdout
from aiodq.format.layout import BytesLike
from aiodq.storage.filesystem import File, OsFileSystem
from aiodq.storage.repair import RepairAction, repair_store
from aiodq.storage.verify import Finding, StoreReport, verify_store

__all__ = ["repair", "verify"]
