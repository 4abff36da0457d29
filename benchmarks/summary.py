"""What runs found, from the JSON files that they left: tables with both sides' guarantees, and a picture.

Everything is made of the kept rounds, so that a table can be made anew, or otherwise, without measuring again.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.harness import median

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

__all__ = ["Entry", "Work", "draw", "full_table", "insert", "losses", "main", "read", "short_table", "tables"]

OURS, COMPILED, BY_THREAD = "aiodq", "aiodq compiled", "aiodq thread"
OWN = frozenset({OURS, COMPILED, BY_THREAD})
DEFAULT = "always"
"""The policy that aiodq is shown with where a work does not ask for another one: it promises most."""

LIBRARIES = {
    OURS: "aiodq",
    COMPILED: "compiled",
    BY_THREAD: "by threads",
    "sqlite": "SQLite inline",
    "aiosqlite": "aiosqlite",
    "persistqueue": "persist-queue",
    "litequeue": "litequeue",
    "diskcache": "diskcache",
    "queuelib": "queuelib",
    "redis": "Redis Streams",
    "godiskqueue": "go-diskqueue",
}
"""Packages and what a table's column calls them, in the order of the columns."""

YARDSTICK = "queuelib"
DERIVED = {"put": 1 / 1.8, "take": 1 / 0.5}
"""go-diskqueue's speed in queuelib's: where both were measured, its push was 1.8 and its pop 0.5 times as fast."""


@dataclass(frozen=True)
class Entry:
    """One subject's rounds of one work."""

    subject: str
    package: str
    known_as: str
    durability: str
    figures: Sequence[float]
    kill: str
    power: str

    @property
    def speed(self) -> float:
        """Operations a second."""
        return median(self.figures)

    def times(self, other: Entry) -> float:
        """Return how many times as fast as the other this is: the median of the rounds' ratios."""
        return median([mine / theirs for mine, theirs in zip(self.figures, other.figures, strict=True)])


@dataclass(frozen=True)
class Work:
    """What was done, with messages of one size."""

    title: str
    size: int
    kind: str
    """`put` or `take`."""
    against: str | None
    entries: Sequence[Entry]

    def ours(self, package: str, durability: str | None = None) -> Entry | None:
        """Return aiodq under the policy that promises this, or the one to show: pure, compiled, or with threads.

        What syncs by `sync_backend="thread"` is measured under the policy to show only.
        """
        if package == BY_THREAD and self.against not in {None, f"aiodq {DEFAULT}"}:
            return None
        for entry in self.entries:
            if entry.package == package == BY_THREAD:
                return entry
            wanted = self.against or (None if durability else f"aiodq {DEFAULT}")
            if entry.package == package and (entry.known_as == wanted if wanted else entry.durability == durability):
                return entry
        return None

    def peers(self) -> Iterator[Entry]:
        """Yield all that is a queue and not aiodq."""
        return (entry for entry in self.entries if entry.package not in OWN and entry.package in LIBRARIES)

    def best(self, package: str) -> Entry | None:
        """Return a library's fastest setting, aiodq in the one to show."""
        if package in OWN:
            return self.ours(package)
        return max((each for each in self.entries if each.package == package), key=lambda e: e.speed, default=None)

    def derived(self) -> float | None:
        """Return go-diskqueue's speed by the yardstick, where it was not measured itself."""
        yardstick = self.best(YARDSTICK)
        return None if yardstick is None or self.best("godiskqueue") else yardstick.speed * DERIVED[self.kind]


def read(report: Mapping[str, Any]) -> list[Work]:
    """Return the headlines of a run, from what `--json` wrote."""
    works: dict[tuple[str, int], dict[str, Any]] = {}
    for entry in report["results"]:
        if "failure" not in entry and entry["headline"]:
            work = works.setdefault((entry["headline"], entry["size"]), {"entries": [], **entry})
            work["entries"].append(Entry(**{name: entry[name] for name in Entry.__dataclass_fields__}))
    return [Work(title, size, work["kind"], work["against"], work["entries"]) for (title, size), work in works.items()]


def _table(header: Sequence[str], rows: Iterable[Sequence[str]], left: int) -> str:
    rule = ["---"] * left + ["--:"] * (len(header) - left)
    return "".join(f"| {' | '.join(row)} |\n" for row in (header, rule, *rows))


def _times(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f} x" if value >= 10 else f"{value:.2g} x"


def _promise(entry: Entry) -> str:
    """Return what is left after a SIGKILL and after a power cut."""
    return entry.kill if entry.kill == entry.power else f"{entry.kill}; {entry.power}"


def _full_rows(work: Work) -> Iterator[list[str]]:
    for peer in sorted(work.peers(), key=lambda each: -each.speed):
        ours, compiled = (work.ours(package, peer.durability) for package in (OURS, COMPILED))
        if ours is not None:
            yield [
                peer.subject,
                _promise(peer),
                ours.subject,
                _promise(ours),
                f"{peer.speed:,.0f}",
                f"{ours.speed:,.0f}",
                _times(ours.times(peer)),
                f"{compiled.speed:,.0f}" if compiled else "",
                _times(compiled.times(peer) if compiled else None),
            ]
    yardstick, derived = work.best(YARDSTICK), work.derived()
    if yardstick is None or derived is None:
        return
    ours, compiled = (work.ours(package, yardstick.durability) for package in (OURS, COMPILED))
    if ours is not None:
        shown = [_times(each.speed / derived) if each else "" for each in (ours, compiled)]
        name = "~ go-diskqueue, derived from queuelib"
        yield [name, "", ours.subject, "", f"~ {derived:,.0f}", "", f"~ {shown[0]}", "", shown[1] and f"~ {shown[1]}"]


def full_table(works: Sequence[Work]) -> str:
    """Return a table for each work as Markdown: every peer beside the aiodq that it is compared with."""
    header = ["peer", "after SIGKILL; a power cut", "aiodq", "after SIGKILL; a power cut"]
    header += ["peer, a second", "aiodq", "aiodq x", "compiled", "compiled x"]
    return "\n".join(f"### {work.title} · {work.size:,} B\n\n{_table(header, _full_rows(work), 4)}" for work in works)


def losses(works: Sequence[Work]) -> str:
    """Return all that is faster than pure aiodq as Markdown, the fastest first, with what it promises."""
    lost = []
    for work in works:
        for peer in work.peers():
            ours, compiled = (work.ours(package, peer.durability) for package in (OURS, COMPILED))
            if ours is not None and (times := ours.times(peer)) < 1:
                beside = _times(compiled.times(peer)) if compiled else ""
                name = f"{work.title}, {work.size:,} B"
                lost.append((times, [name, peer.subject, _promise(peer), _times(times), beside]))
    header = ["aiodq loses at", "to", "which after SIGKILL; a power cut", "aiodq x", "compiled x"]
    return _table(header, [row for _, row in sorted(lost)], 3)


def _short_cell(work: Work, package: str) -> str:
    best = work.best(package)
    if best is not None:
        return _thousands(best.speed)
    derived = work.derived() if package == "godiskqueue" else None
    return "" if derived is None else f"~ {_thousands(derived)}"


def _thousands(speed: float) -> str:
    return f"{speed / 1000:,.0f}" if speed >= 99_500 else f"{speed / 1000:.3g}"


def short_table(works: Sequence[Work]) -> str:
    """Return one table as Markdown: thousands a second, of each library in its fastest setting of those that may be."""
    packages = [each for each in LIBRARIES if any(_short_cell(work, each) for work in works)]
    rows = [[work.title, *(_short_cell(work, each) for each in packages)] for work in works]
    sizes = " and ".join(f"{size:,}" for size in sorted({work.size for work in works}))
    return _table([f"thousands a second, {sizes} B", *(LIBRARIES[each] for each in packages)], rows, 1)


def tables(works: Sequence[Work], environment: Mapping[str, str]) -> dict[str, str]:
    """Return all tables, and where they were measured, by the names that pages know them by."""
    smallest = _smallest(works)
    others = [work for work in works if work not in smallest]
    larger = [short_table([work for work in others if work.size == size]) for size in sorted({w.size for w in others})]
    return {
        "environment": ". ".join(f"{name[0].upper()}{name[1:]}: {value}" for name, value in environment.items())
        + ".\n",
        "short": short_table(smallest),
        "full": full_table(smallest),
        "larger": "\n".join(larger),
        "losses": losses(works),
    }


def insert(page: str, made: Mapping[str, str]) -> str:
    """Return a page with each table in the place that `<!-- its name -->` and `<!-- /its name -->` enclose."""
    for name, table in made.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
        before, found, rest = page.partition(begin)
        _, closed, after = rest.partition(end)
        if found and closed:
            page = f"{before}{begin}{table}{end}{after}"
    return page


def _smallest(works: Sequence[Work]) -> list[Work]:
    """Return the works with messages of the smallest size."""
    size = min(work.size for work in works)
    return [work for work in works if work.size == size]


BAR, GAP, LABEL, FULL, WIDTH = 15, 4, 210, 340, 650
STYLE = """
text { font: 12px system-ui, sans-serif; fill: #24292f }
.title { font-weight: 600; font-size: 13px }
.peer { fill: #8c959f } .ours { fill: #0969da } .compiled { fill: #54aeff } .derived { fill: #d0d7de }
@media (prefers-color-scheme: dark) { text { fill: #e6edf3 } .derived { fill: #484f58 } }
"""


def _bars(work: Work) -> list[tuple[str, str, float]]:
    """Return the label, the style and the length of each bar: aiodq first, then its peers from the fastest on."""
    entries = [best for package in LIBRARIES if (best := work.best(package)) is not None]
    styles = {OURS: "ours", COMPILED: "compiled", BY_THREAD: "ours"}
    bars = [(each.subject, styles.get(each.package, "peer"), each.speed) for each in entries]
    if (derived := work.derived()) is not None:
        bars.append(("go-diskqueue, derived", "derived", derived))
    own = [bar for bar in bars if bar[1] in styles.values()]
    return own + sorted((bar for bar in bars if bar not in own), key=lambda bar: -bar[2])


def _panel(work: Work, top: int) -> tuple[str, int]:
    """Draw one work from this height down; return the height where it ends."""
    bars = _bars(work)
    longest = max(speed for _, _, speed in bars)
    lines = [f'<text class="title" x="10" y="{top + 18}">{escape(work.title)}, {work.size:,} B, a second</text>']
    at = top + 28
    for label, style, speed in bars:
        width = max(1.0, speed / longest * FULL)
        lines += [
            f'<text x="{LABEL - 8}" y="{at + 12}" text-anchor="end">{escape(label)}</text>',
            f'<rect class="{style}" x="{LABEL}" y="{at}" width="{width:.1f}" height="{BAR}" rx="2"/>',
            f'<text x="{LABEL + width + 6:.1f}" y="{at + 12}">{speed:,.0f}</text>',
        ]
        at += BAR + GAP
    return "\n".join(lines), at + 10


def draw(works: Sequence[Work]) -> str:
    """Return a picture of all works as SVG: a bar for each library, as long as it is fast within its work."""
    panels, top = [], 0
    for work in works:
        panel, top = _panel(work, top)
        panels.append(panel)
    size = f'width="{WIDTH}" height="{top}" viewBox="0 0 {WIDTH} {top}"'
    body = "\n".join(panels)
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>\n<style>{STYLE}</style>\n{body}\n</svg>\n'


def main(argv: Sequence[str] | None = None) -> int:
    """Print the tables of a kept run, and draw it where a file is named."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks summary", description="Tables and a picture of a run.")
    parser.add_argument("file", type=Path, nargs="+", help="what --json wrote; several are shown as one run")
    parser.add_argument("--into", type=Path, action="append", metavar="PAGE", help="a page whose tables are replaced")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="draw the smallest size's")
    given = parser.parse_args(argv)
    reports = [json.loads(file.read_text(encoding="utf-8")) for file in given.file]
    works = [work for report in reports for work in read(report)]
    environment = dict(reports[0].get("environment", {}))
    if missing := {library: why for report in reports for library, why in report.get("missing", {}).items()}:
        environment["not measured"] = "; ".join(f"{library} ({why})" for library, why in missing.items())
    made = tables(works, environment)
    for page in given.into or []:
        page.write_text(insert(page.read_text(encoding="utf-8"), made), encoding="utf-8")
    if not given.into:
        sys.stdout.write("\n".join(made.values()))
    if given.svg is not None:
        given.svg.write_text(draw(_smallest(works)), encoding="utf-8")
    return 0
