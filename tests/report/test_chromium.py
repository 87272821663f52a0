"""In a real browser: the page renders without errors, hovering tells what is alive, headings sort, rows open, both steps are shown."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path

import pytest

from lowtide.report.page import page
from lowtide.report.picture import picture_of
from tests.report.pictures import EVIL, a_plan, a_profile
from tests.report.test_page import CURVE

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)  # fmt: skip
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here"),
]

LISTEN = """<script>
window.failed = [];
addEventListener("error", (event) => failed.push(event.message));
addEventListener("securitypolicyviolation", (event) => failed.push(event.violatedDirective));
</script>"""
ACT = """<script>
const one = (query) => document.querySelector(query);
const lines = (query) => [...document.querySelectorAll(query)].filter((e) => e.offsetParent).map((e) => e.innerText.trim());
const told = () => one("#readout").innerText;
const point = (kind, share) => {
  const box = one("#plot").getBoundingClientRect();
  one("#plot").dispatchEvent(new PointerEvent(kind, { clientX: box.left + share * box.width, clientY: box.top + 9, bubbles: true }));
};
const press = (key) => one("#plot").dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
const said = { failed, rest: told(), wide: document.documentElement.scrollWidth - innerWidth };
point("pointermove", 0.02); said.start = told();
point("pointermove", 0.95); said.end = told();
point("click", 0.5); said.pinned = told();
point("pointermove", 0.02); said.still = told();
press("p"); said.peak = told();
press("Escape");
const names = "[data-step='0'] table.sorts tbody tr:not(.inner) td:first-child";
said.by_size = lines(names);
one("[data-step='0'] th[data-sort]").click(); said.by_name = lines(names);
one("[data-step='0'] .open")?.click(); said.opened = lines("[data-step='0'] tr.inner td:first-child");
one("[data-show='1']")?.click(); said.other = told();
const out = document.createElement("pre");
out.id = "said";
out.textContent = JSON.stringify(said);
document.body.append(out);
</script>"""


def acted(text: str, folder: Path, width: int) -> dict[str, object]:
    """What the page's reader sees and does, as told by a script at the page's end."""
    file = folder / "page.html"
    text = text.replace("<title>", f"{LISTEN}<title>", 1).replace("</body>", f"{ACT}</body>")
    file.write_text(text, encoding="utf-8")
    assert CHROMIUM is not None
    command = [
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'chromium'}",
        f"--window-size={width},900", "--enable-logging=stderr", "--dump-dom", file.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert not [line for line in done.stderr.splitlines() if ":CONSOLE" in line]
    (said,) = re.findall(r'<pre id="said">(.*?)</pre>', done.stdout, flags=re.DOTALL)
    found = json.loads(unescape(said))
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("width", [1280, 600])
def test_a_plan_in_a_browser(tmp_path: Path, width: int):
    plan = a_plan()
    said = acted(page(picture_of(plan, "net", curve=CURVE)), tmp_path, width)
    assert said["failed"] == []
    assert int(str(said["wide"])) <= 0
    assert "at the peak" in str(said["rest"])
    assert "forward" in str(said["start"])
    assert "backward" in str(said["end"])
    assert said["pinned"] == said["still"]
    assert said["peak"] == said["rest"]
    assert said["by_size"] != said["by_name"]
    assert said["by_name"] == sorted(map(str, said["by_size"]))  # type: ignore[call-overload]
    assert len(said["opened"]) > 1  # type: ignore[arg-type]
    assert said["other"] != said["rest"]


def test_words_from_files_stay_words(tmp_path: Path):
    for source in (a_plan(evil=EVIL), a_profile(EVIL)):
        said = acted(page(picture_of(source, EVIL)), tmp_path, 1280)
        assert said["failed"] == []
        assert EVIL in str(said["rest"])
