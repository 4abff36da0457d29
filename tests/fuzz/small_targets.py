"""The targets for small files that are read whole: descriptions, records, holds, watermarks."""

from __future__ import annotations

from typing import Final

from aiodq.errors import CorruptionError, FormatVersionError, InvalidOptionError
from aiodq.format.producers import Origin
from aiodq.storage.bulk import commits
from aiodq.storage.bulk.commits import COMMITS
from aiodq.storage.state import holds
from aiodq.storage.state.store_identity import STORE_FILE, StoreIdentity, encode_identity, read_identity
from aiodq.storage.state.topic.topic_meta import read_meta, save_meta
from aiodq.storage.state.transactions.transaction_origins import ORIGINS, TransactionOrigins, read_origins
from aiodq.storage.state.watermark import WATERMARK, WatermarkFile, check_slots, read_slots
from aiodq.testing import SimulatedFileSystem

_TIME: Final = 1_760_000_000_000_000_000


def topic(data: bytes) -> bool:
    """A topic's description."""
    fs = SimulatedFileSystem({"/t/topic.json": data})
    try:
        meta = read_meta(fs, "/t")
    except (CorruptionError, FormatVersionError):
        return False
    assert meta is not None
    save_meta(fs, "/t", meta)
    assert read_meta(fs, "/t") == meta
    return True


def commit_record(data: bytes) -> bool:
    """A bulk load's record."""
    fs = SimulatedFileSystem({f"/s/{COMMITS}": None})
    try:
        found = commits.decode_commit(data, "c.json")
    except (CorruptionError, FormatVersionError):
        return False
    for topic in found.bases:
        assert [at for _, at in found.placed(topic)] == sorted({at for _, at in found.placed(topic)})
    try:
        commits.staging_directory("/s", found.key.name)
    except InvalidOptionError:
        return True
    commits.write_commit(fs, "/s", found)
    (path,) = (path for path in fs.image() if path.endswith(".json"))
    assert commits.decode_commit(fs.image()[path] or b"", path) == found
    return True


def hold(data: bytes) -> bool:
    """What a reader asks to be kept."""
    try:
        found = holds.decode_hold(data, "h.json")
    except (CorruptionError, FormatVersionError):
        return False
    assert all(found.first(topic) == first for topic, first in found.offsets.items())
    fs = SimulatedFileSystem({"/s": None})
    holds.write_hold(fs, "/s", "name", found)
    assert holds.read_holds(fs, "/s") == {"name": found}
    return True


def origins(data: bytes) -> bool:
    """Whose transactions are committed."""
    fs = SimulatedFileSystem({"/s": None, f"/s/{ORIGINS}": data})
    try:
        found = read_origins(fs, "/s")
    except (CorruptionError, FormatVersionError):
        return False
    known = TransactionOrigins(fs, "/s", [], _TIME)
    assert all(origin in known for origin, _ in found)
    known.note(Origin(1, 1), _TIME)
    known.keep(_TIME)
    assert Origin(1, 1).producer in {origin.producer for origin, _ in read_origins(fs, "/s")}
    return True


def identity(data: bytes) -> bool:
    """Which store it is."""
    fs = SimulatedFileSystem({"/s": None, f"/s/{STORE_FILE}": data})
    try:
        found = read_identity(fs, "/s")
    except FormatVersionError:
        return False
    except CorruptionError:
        found = None
    StoreIdentity(fs, "/s").make()
    made = read_identity(fs, "/s")
    assert made is not None
    if found is None:
        assert data in fs.image().values()
        return False
    assert made == found
    fs = SimulatedFileSystem({"/s": None, f"/s/{STORE_FILE}": encode_identity(found)})
    return read_identity(fs, "/s") == found


def slots(data: bytes) -> bool:
    """A topic's watermark."""
    sequence, first, second = read_slots(data)
    findings = check_slots(data)
    assert len(findings) <= 2
    fs = SimulatedFileSystem({f"/t/{WATERMARK}": data})
    file = WatermarkFile(fs, f"/t/{WATERMARK}")
    assert file.values == (first, second)
    file.write(5, 6)
    file.close()
    assert read_slots(fs.image()[f"/t/{WATERMARK}"] or b"")[1:] == (5, 6)
    return bool(sequence)
