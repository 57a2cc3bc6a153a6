"""A real browser without a screen, for what only it can tell of a page. Chromium under any of its names; else tests skip."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from commands import HANG

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_QUIET = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions",
    "--host-resolver-rules=MAP * ~NOTFOUND", "--enable-logging=stderr", "--v=0", "--virtual-time-budget=2000",
)  # fmt: skip
_POLICY = re.compile(r'<meta http-equiv="Content-Security-Policy"[^>]*>')


@dataclass
class Seen:
    """What the browser found. answers: of the script, one a size. console: its messages."""

    answers: list
    console: list[str]


def browser() -> str:
    """The browser's program; the test skips without one."""
    found = next((path for name in _NAMES if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip("no Chromium: install the package chromium to have pages looked at")
    return found


def open_page(page: Path, script: str, sizes: Sequence[tuple[int, int]], dark: bool = False) -> Seen:
    """Opens a page as it is, and for each size (width, height) a copy that lets `script`, an expression, answer."""
    asking = (
        "<script>addEventListener('load',()=>{let said;try{said=("
        + script
        + ")}catch(e){said={error:String(e)}}parent.postMessage([Number(name),said],'*')})</script>"
    )
    text = _POLICY.sub("", page.read_text(encoding="utf-8"))
    copy = page.with_suffix(".asked.html")
    copy.write_text(text.replace("</body>", asking + "</body>"), encoding="utf-8")
    frames = "".join(
        f'<iframe name="{at}" src="{copy.name}" width="{w}" height="{h}" style="border:0"></iframe>'
        for at, (w, h) in enumerate(sizes)
    )
    outer = page.with_suffix(".frames.html")
    outer.write_text(
        '<!DOCTYPE html><html><head><meta charset="utf-8"><script>const said={};addEventListener("message",e=>{said[e.data[0]]='
        'e.data[1];document.querySelector("pre").textContent=JSON.stringify(said)})</script></head><body><pre></pre>'
        f'{frames}<iframe src="{page.name}" width="800" height="600"></iframe></body></html>',
        encoding="utf-8",
    )
    with tempfile.TemporaryDirectory(prefix="chromium-") as profile:
        look = ["--blink-settings=preferredColorScheme=0"] if dark else []
        done = subprocess.run(
            [browser(), *_QUIET, *look, f"--user-data-dir={profile}", "--dump-dom", outer.resolve().as_uri()],
            capture_output=True,
            text=True,
            timeout=HANG,
        )
    assert done.returncode == 0, done.stderr[-2000:]
    said = re.search(r"<pre>(.*?)</pre>", done.stdout, re.DOTALL)
    assert said is not None and said[1], done.stdout[-2000:] + done.stderr[-2000:]
    answers = json.loads(html.unescape(said[1]))
    assert sorted(answers) == sorted(str(at) for at in range(len(sizes))), answers
    return Seen(
        [answers[str(at)] for at in range(len(sizes))],
        [line for line in done.stderr.splitlines() if "CONSOLE" in line],
    )
