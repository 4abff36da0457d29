"""Bar charts as SVG, and the HTML page around them."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

__all__ = ["Bars", "page"]

_WIDTH: Final = 860
_HEIGHT: Final = 180
_LABELS: Final = 230
_ROW: Final = 22
_STYLE: Final = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem; color: #1b1f24 }
h1 { font-size: 1.4rem } h2 { margin-top: 2.5rem; border-bottom: 1px solid #d0d7de } figure { margin: 1.5rem 0 }
figcaption { font-weight: 600; margin-bottom: .3rem } svg { width: 100%; height: auto } rect { fill: #3b6fb6 }
text { font-size: 12px; fill: #57606a } line { stroke: #d0d7de } footer { color: #57606a; margin-top: 3rem }
"""


@dataclass(frozen=True)
class Bars:
    """A bar chart.

    Attributes:
        title: what the bars stand for.
        bars: the label and value of each; values are at least 0.
        across: whether bars are horizontal, one a line; otherwise vertical, with the first and the last label below.
    """

    title: str
    bars: Sequence[tuple[str, float]]
    across: bool = False

    def svg(self) -> str:
        """Return the chart; pointing at a bar shows its value."""
        return self._lying() if self.across else self._standing()

    @property
    def _most(self) -> float:
        return max((value for _, value in self.bars), default=0.0) or 1.0

    def _lying(self) -> str:
        height = _ROW * max(len(self.bars), 1) + 4
        parts = [f'<svg viewBox="0 0 {_WIDTH} {height}" role="img">']
        for number, (label, value) in enumerate(self.bars):
            y, long = _ROW * number, (_WIDTH - _LABELS - 90) * value / self._most
            parts.append(f'<text x="{_LABELS - 8}" y="{y + 15}" text-anchor="end">{escape(_short(label))}</text>')
            parts.append(_bar(_LABELS, y + 3, max(long, 1 if value else 0), _ROW - 6, label, value))
            parts.append(f'<text x="{_LABELS + long + 6:.1f}" y="{y + 15}">{_number(value)}</text>')
        return "".join((*parts, "</svg>"))

    def _standing(self) -> str:
        wide = (_WIDTH - 60) / max(len(self.bars), 1)
        parts = [f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT + 24}" role="img">']
        parts.append(f'<line x1="55" y1="{_HEIGHT}" x2="{_WIDTH}" y2="{_HEIGHT}"/>')
        parts.append(f'<text x="50" y="14" text-anchor="end">{_number(self._most)}</text>')
        for number, (label, value) in enumerate(self.bars):
            high = max((_HEIGHT - 6) * value / self._most, 1 if value else 0)
            parts.append(_bar(55 + wide * number, _HEIGHT - high, max(wide - 1, 1), high, label, value))
        if self.bars:
            below = _HEIGHT + 16
            parts.append(f'<text x="55" y="{below}">{escape(_short(self.bars[0][0]))}</text>')
        if len(self.bars) > 1:
            last = escape(_short(self.bars[-1][0]))
            parts.append(f'<text x="{_WIDTH}" y="{below}" text-anchor="end">{last}</text>')
        return "".join((*parts, "</svg>"))


def _bar(x: float, y: float, width: float, height: float, label: str, value: float) -> str:  # noqa: PLR0917 - a box
    told = f"<title>{escape(label)}: {_number(value)}</title>"
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}">{told}</rect>'


def _short(label: str) -> str:
    return label if len(label) <= 34 else label[:33] + "…"  # noqa: PLR2004 - what fits into `_LABELS`


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 999.5 else f"{value:,.3g}"  # noqa: PLR2004 - by three digits, it is 1e+03


def page(title: str, now: datetime, sections: Sequence[tuple[str, Sequence[str | Bars]]]) -> str:
    """Return an HTML document of sections, each of texts and charts."""
    parts = [
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>',
        f"<style>{_STYLE}</style></head><body><h1>{escape(title)}</h1>",
    ]
    if not sections:
        parts.append("<p>There is no topic yet.</p>")
    for name, content in sections:
        parts.append(f"<section><h2>{escape(name)}</h2>")
        for item in content:
            if isinstance(item, Bars):
                parts.append(f"<figure><figcaption>{escape(item.title)}</figcaption>{item.svg()}</figure>")
            else:
                parts.append(f"<p>{escape(item)}</p>")
        parts.append("</section>")
    parts.append(f"<footer>As of {now:%Y-%m-%d %H:%M:%S} UTC</footer></body></html>\n")
    return "\n".join(parts)
