"""Results as tables for a terminal, as Markdown, or as JSON; all from the same rows."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Table

from benchmarks.harness import TAKING, Metric, Result, Subject, median, ratio

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from rich.console import Console

__all__ = ["LEGEND", "write_json", "write_markdown", "write_tables"]

LEGEND = (
    "Medians over the rounds. 'aiodq x': how many times better aiodq is under the policy that promises the same; "
    "above 1 aiodq wins."
)


def _figure(value: float, metric: Metric) -> str:
    if metric.unit == "ops/s":
        return f"{value:,.0f}"
    if value < metric.resolution:
        return f"< {metric.resolution * 1e3:g} ms"
    return f"{value * 1e6:,.0f} µs" if value < 1e-3 else f"{value * 1e3:,.2f} ms"


def _times(value: float | None) -> str:
    if value is None:
        return "-"
    if value >= 10:
        return f"{value:,.0f}"
    return f"{value:.2f}" if value >= 0.1 else f"{value:.1g}"


def _ratio(result: Result, subject: Subject, metric: Metric) -> float | None:
    """Return how many times better aiodq is than `subject`; None for aiodq itself or without aiodq."""
    ours = result.baseline(subject)
    if ours is None or subject.package == "aiodq":
        return None
    return ratio(result.figures(ours, metric), result.figures(subject, metric), metric)


def _header(result: Result) -> list[str]:
    columns = ["subject", "a put is"]
    for metric in result.case.metrics:
        columns += [metric.name, "min - max", "aiodq x"]
    return columns


def _ranked(result: Result) -> list[Subject]:
    """Return the subjects by what they promise, aiodq first within each kind."""
    kinds = list(type(result.subjects[0].durability)) if result.subjects else []
    return sorted(
        result.subjects, key=lambda each: (kinds.index(each.durability), not each.package.startswith("aiodq"))
    )


def _row(result: Result, subject: Subject) -> list[str]:
    row = [subject.name, subject.durability.value]
    if subject.name in result.failures:
        return [*row, f"failed: {result.failures[subject.name]}"]
    for metric in result.case.metrics:
        figures = result.figures(subject, metric)
        span = f"{_figure(min(figures), metric)} - {_figure(max(figures), metric)}"
        row += [_figure(median(figures), metric), span, _times(_ratio(result, subject, metric))]
    return row


def _title(result: Result) -> str:
    return f"{result.case.name} · {result.size:,} B"


def _rows(result: Result) -> Iterator[list[str]]:
    width = len(_header(result))
    for subject in _ranked(result):
        row = _row(result, subject)
        yield row + [""] * (width - len(row))


def _promises(results: Sequence[Result]) -> dict[str, str]:
    """Return what each measured subject promises."""
    ranked = (subject for result in results for subject in _ranked(result))
    return {subject.name: f"{subject.durability.value}: {subject.promise}" for subject in ranked}


def write_tables(results: Sequence[Result], console: Console) -> None:
    """Print what each subject promises, and a table for each result."""
    promises = Table("subject", "what a put that returned is worth")
    for name, promise in _promises(results).items():
        promises.add_row(name, promise)
    console.print(promises)
    console.print()
    for result in results:
        table = Table(title=_title(result), caption=result.case.summary, title_justify="left", caption_justify="left")
        for index, name in enumerate(_header(result)):
            table.add_column(name, justify="left" if index < 2 else "right", overflow="fold")
        kind = None
        for subject, row in zip(_ranked(result), _rows(result), strict=True):
            if kind not in {None, subject.durability}:
                table.add_section()
            kind = subject.durability
            table.add_row(*map(escape, row), style="bold" if subject.package.startswith("aiodq") else None)
        console.print(table)
        console.print()


def write_markdown(results: Sequence[Result], environment: Mapping[str, str], missing: Mapping[str, str]) -> str:
    """Return the whole report as Markdown."""
    lines = [f"- {name}: {value}" for name, value in environment.items()]
    lines += [f"- {library}: {reason}" for library, reason in missing.items()]
    lines += ["", "| subject | what a put that returned is worth |", "| --- | --- |"]
    lines += [f"| {name} | {promise} |" for name, promise in _promises(results).items()]
    lines += ["", LEGEND]
    for result in results:
        header = _header(result)
        rule = ["---", "---", *["---:"] * (len(header) - 2)]
        lines += ["", f"### {_title(result)}", "", result.case.summary, ""]
        lines += [f"| {' | '.join(row)} |" for row in (header, rule, *_rows(result))]
    return "\n".join(lines) + "\n"


def _entry(result: Result, subject: Subject, metric: Metric) -> dict[str, object]:
    figures = result.figures(subject, metric)
    guarantee = subject.guarantee(result.case.operation)
    return {
        "case": result.case.name,
        "headline": result.case.headline,
        "kind": "take" if result.case.operation in TAKING else "put",
        "against": result.case.against,
        "size": result.size,
        "subject": subject.name,
        "known_as": subject.known_as or subject.name,
        "package": subject.package,
        "kill": guarantee.kill,
        "power": guarantee.power,
        "durability": subject.durability.name.lower(),
        "promise": subject.promise,
        "metric": metric.name,
        "unit": metric.unit,
        "figures": figures,
        "median": median(figures),
        "aiodq_times_better": _ratio(result, subject, metric),
    }


def _entries(result: Result) -> Iterator[dict[str, object]]:
    for subject in result.subjects:
        if subject.name in result.failures:
            failure = result.failures[subject.name]
            yield {"case": result.case.name, "size": result.size, "subject": subject.name, "failure": failure}
        else:
            yield from (_entry(result, subject, metric) for metric in result.case.metrics)


def write_json(
    file: Path, results: Sequence[Result], environment: Mapping[str, str], missing: Mapping[str, str]
) -> None:
    """Write every single figure to `file`."""
    entries = [entry for result in results for entry in _entries(result)]
    report = {"environment": dict(environment), "missing": dict(missing), "results": entries}
    file.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
