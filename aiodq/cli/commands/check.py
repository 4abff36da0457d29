"""`aiodq verify` and `aiodq repair`."""

from typing import Any

from aiodq.cli.arguments import Place
from aiodq.cli.exits import DONE, WRONG
from aiodq.cli.metered import MeteredFileSystem
from aiodq.cli.output import read_or_not
from aiodq.cli.show import Meter, counted, human_bytes, print_json, stdout
from aiodq.storage.offline.repair import RepairAction, repair_store
from aiodq.storage.offline.store_report import Finding, StoreReport
from aiodq.storage.offline.verify import verify_store
from aiodq.storage.store_layout import absolute_path

__all__ = ["repair", "verify"]


def verify(store: Place, /, *, json: bool = False) -> int:
    """Read every byte of a store and report what is wrong, by file and position. Nothing is written.

    The exit code is 1 if there is damage; damage that repair cannot settle is marked. Lost messages that were settled
    before, and unfinished writes, are reported, but are not damage.

    Args:
        store: the store's directory.
        json: print the report as JSON.
    """
    with Meter("verify") as meter:
        report = verify_store(absolute_path(store), MeteredFileSystem(meter))
    with read_or_not():
        if json:
            print_json(_report_fields(report))
        else:
            _print_report(report)
    return DONE if report.ok else WRONG


def _report_fields(report: StoreReport) -> dict[str, Any]:
    totals = {"files": len(report.files), "messages": report.records, "bytes": report.bytes}
    return {"path": report.path, "ok": report.ok, **totals, "findings": report.findings}


def _print_report(report: StoreReport) -> None:
    console = stdout()
    for found in report.findings:
        console.print(_finding_text(found))
    total = f"{counted(len(report.files), 'file')}, {counted(report.records, 'message')}, {human_bytes(report.bytes)}"
    console.print(f"{total}: {_verdict(report)}")


def _verdict(report: StoreReport) -> str:
    if not report.files:
        return "no topic yet"
    if report.ok:
        return "no damage"
    by_hand, found = sum(one.by_hand for one in report.damages), counted(len(report.damages), "damage")
    if not by_hand:
        return f"{found}, which aiodq repair settles"
    if by_hand == len(report.damages):
        return f"{found}, which aiodq repair leaves to you"
    return f"{found}, of which aiodq repair leaves {by_hand} to you"


def _finding_text(found: Finding) -> str:
    lost = f" (messages {found.first} to {found.stop - 1})" if found.stop > found.first else ""
    return f"{found.path} at byte {found.position}: {found.severity}: {found.reason}{lost}"


def repair(store: Place, /, *, json: bool = False) -> int:
    """Settle what verify calls damage, and report what was done.

    No other process may have the store open. No byte is destroyed: what cannot be read is quarantined first. The exit
    code is 1 if something was left alone that an administrator has to change.

    Args:
        store: the store's directory.
        json: print what was done as JSON.
    """
    with Meter("repair") as meter:
        actions = repair_store(absolute_path(store), MeteredFileSystem(meter))
    left = sum(action.left for action in actions)
    with read_or_not():
        if json:
            print_json(actions)
        else:
            _print_actions(actions, left)
    return WRONG if left else DONE


def _print_actions(actions: list[RepairAction], left: int) -> None:
    console = stdout()
    for action in actions:
        console.print(_action_text(action))
    done = f"{counted(len(actions) - left, 'thing')} done" if actions else "nothing to do"
    console.print(f"{done}, {left} left alone" if left else done)


def _action_text(action: RepairAction) -> str:
    kept = f" (kept as {action.kept})" if action.kept else ""
    return f"{action.path}: {action.what}{kept}"
