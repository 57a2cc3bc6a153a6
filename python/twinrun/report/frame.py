"""The common frame of pages: one self-contained HTML file, in a light or dark scheme, and its small parts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..words import escaped

__all__ = ["BAD", "GOOD", "OPEN", "STYLE", "frame", "table"]

GOOD, BAD, OPEN = "good", "bad", "open"  # classes of verdicts
_LONGEST = 200  # characters of a cell

# Colours of lines: Okabe and Ito's, which colour-blind people can distinguish; darker on white.
STYLE = """
:root{color-scheme:light dark;--text:#1f2328;--page:#fff;--soft:#f5f7f9;--rule:#d9dee3;--faint:#59636e;
--bad:#b3261e;--good:#2c7a3d;--open:#8a6100;--same:#dfe9e1;--line0:#0072b2;--line1:#b84700;--line2:#007a5a;--line3:#a8487f;
--line4:#7a6a00;--line5:#2f83b7;--line6:#444c56;--line7:#9a3fb5}
@media (prefers-color-scheme:dark){:root{--text:#e4e7ea;--page:#14171b;--soft:#1e2329;--rule:#353c44;--faint:#9aa4ae;
--bad:#ff7b6e;--good:#6cc57f;--open:#e0b040;--same:#26362b;--line0:#56b4e9;--line1:#f08a3c;--line2:#2fc79b;--line3:#e08fbd;
--line4:#e6d84a;--line5:#8ec9f0;--line6:#b6bec7;--line7:#c98ae0}
svg:not(.chart){filter:invert(.9) hue-rotate(180deg);border-radius:4px}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:1060px;padding:1em 1.1em 3em;font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif;
color:var(--text);background:var(--page);overflow-wrap:anywhere}
h1{font-size:1.25em;line-height:1.3;margin:.3em 0 .6em}
h2{font-size:1.08em;margin:2.2em 0 .4em;border-top:1px solid var(--rule);padding-top:1em}
h3{font-size:.95em;margin:1.3em 0 .3em}
.verdict{border-left:6px solid var(--faint);border-radius:4px;padding:.6em .9em;background:var(--soft);font-size:1.06em;margin:.6em 0}
.verdict.good{border-color:var(--good)}.verdict.bad{border-color:var(--bad)}.verdict.open{border-color:var(--open)}
b.good{color:var(--good)}b.bad,td.bad{color:var(--bad)}b.open{color:var(--open)}
.state{color:var(--page);background:var(--faint);border-radius:3px;padding:0 .45em;font-size:.8em;margin-right:.5em}
.state.good{background:var(--good)}.state.bad{background:var(--bad)}.state.open{background:var(--open)}
.facts{display:grid;grid-template-columns:repeat(auto-fit,minmax(130px,1fr));gap:.5em 1.2em;margin:.8em 0;padding:0}
.facts div{min-width:0}.facts dt{color:var(--faint);font-size:.78em;line-height:1.3}.facts dd{margin:0;font-variant-numeric:tabular-nums}
.first{border:1px solid var(--rule);border-radius:6px;padding:.5em .9em;margin:.8em 0}.first h2{border:0;margin:0;padding:0}
.first .facts{grid-template-columns:repeat(auto-fit,minmax(168px,1fr));margin:.3em 0 .2em}
.scroll{overflow-x:auto;margin:.6em 0}
table{border-collapse:collapse;font-size:12.5px;font-variant-numeric:tabular-nums;overflow-wrap:normal}
caption{text-align:left;color:var(--faint);padding:.2em 0}
td,th{border-bottom:1px solid var(--rule);padding:.2em .7em;text-align:right;white-space:nowrap}
td:first-child,th:first-child,td.text,th.text{text-align:left}
th{color:var(--faint);font-weight:600}td.wrap{white-space:normal;min-width:12em;overflow-wrap:anywhere}
svg{max-width:100%;height:auto}.scroll>svg{min-width:540px;display:block}ul{padding-left:1.4em}svg.chart{display:block;width:100%;min-width:540px;font:12px system-ui,"DejaVu Sans",sans-serif}
svg.chart text{fill:var(--faint)}svg.small{min-width:0;width:auto}
.row{display:flex;flex-wrap:wrap;gap:1.2em}.row figure{margin:0;flex:1 1 260px;max-width:420px}figcaption{color:var(--faint);font-size:.85em}
.legend{list-style:none;display:flex;flex-wrap:wrap;gap:.1em 1.2em;padding:0;margin:.3em 0;font-size:.88em}
.legend i{display:inline-block;width:1.3em;height:.75em;margin-right:.4em;border-radius:2px;vertical-align:-.03em}
.note,details>summary{color:var(--faint);font-size:.9em}details>summary{cursor:pointer}details{margin:.4em 0}
ul.lines{padding-left:1.2em;font-size:.93em}li{margin:.35em 0}ul.lines li{margin:.15em 0}
a{color:inherit}code{font:.92em ui-monospace,"DejaVu Sans Mono",monospace}
@media print{.scroll{overflow:visible}}
"""


def frame(title: str, body: Iterable[str]) -> str:
    """A whole page. title: text. body: HTML."""
    return "\n".join(
        [
            '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width,initial-scale=1">',
            # Whatever a hostile name puts into the page: nothing is loaded, nothing runs.
            "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none';style-src 'unsafe-inline';img-src data:\">",
            f"<title>{escaped(title)}</title>",
            f"<style>{STYLE}</style></head><body>",
            *(part for part in body if part),
            "</body></html>\n",
        ]
    )


def table(
    head: Sequence[str],
    rows: Iterable[Sequence[object]],
    caption: str = "",
    text: Sequence[int] = (),
    wrap: Sequence[int] = (),
) -> str:
    """A table; '' without rows. text: columns that are aligned left; wrap: columns whose lines may break."""
    lines = []
    for row in rows:
        cells = []
        for at, value in enumerate(row):
            kind = "text wrap" if at in wrap else "text" if at in text else ""
            cells.append(
                f'<td class="{kind}">{escaped(value)}</td>' if kind else f"<td>{escaped(value)}</td>"
            )
        lines.append("<tr>" + "".join(cells) + "</tr>")
    if not lines:
        return ""
    heads = "".join(
        f'<th scope="col" class="text">{escaped(h)}</th>'
        if at in text or at in wrap
        else f'<th scope="col">{escaped(h)}</th>'
        for at, h in enumerate(head)
    )
    said = f"<caption>{escaped(caption)}</caption>" if caption else ""
    return (
        f'<div class="scroll" tabindex="0"><table>{said}<thead><tr>{heads}</tr></thead><tbody>\n'
        + "\n".join(lines)
        + "\n</tbody></table></div>"
    )
