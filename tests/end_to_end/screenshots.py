"""`python -m tests.end_to_end.screenshots LOGDIR PAGE OUT.png`: a page of TensorBoard in a real browser, as a
picture.

PAGE: hparams, custom_scalars, images or scalars. Needs Chromium and requirements-dev.txt. test_browser.py
reads the same pages.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
PAGES = {
    "hparams": (2240, 580),
    "custom_scalars": (1500, 790),
    "images": (1500, 1300),
    "scalars": (1500, 950),
}
"""Name in the address -> width and height of its window, pixels: every open column of HPARAMS is seen, and
the charts of rate and step.
"""
AS_MEASURED = "&_smoothingWeight=0"
ALL_OF_IT = "if (location.protocol === 'http:') localStorage.setItem('_ignoreYOutliers', 'false')"
"""Settings of a page with curves: every point where it is, a ceiling far above the rate too."""
TIMEOUT_S = 120.0
SETTLED_S, SHELL = 2.0, 12
"""Without a change for so long, a page that waits for nothing and has more lines of text than TensorBoard's
own head is complete.
"""
TEXT = """
(() => {
  const found = [];
  const walk = (node) => {
    if (node.nodeType === Node.TEXT_NODE && node.textContent.trim()) found.push(node.textContent.trim());
    if (node.nodeType === Node.ELEMENT_NODE) {
      const style = getComputedStyle(node);
      if (style.display === 'none' || style.visibility === 'hidden') return;
    }
    for (const child of [...(node.shadowRoot?.childNodes ?? []), ...node.childNodes]) walk(child);
  };
  walk(document.body);
  return found.join('\\n');
})()
"""
"""What a person can read, a text node a line; also below shadow roots, of which TensorBoard is made."""


class Page:
    """One tab of the browser, driven over its debugging port (Chrome DevTools Protocol)."""

    def __init__(self, socket: Any) -> None:
        self._socket, self._sent = socket, 0
        self._loading: set[str] = set()  # requests that have no answer yet
        self._ask("Page.enable")
        self._ask("Network.enable")
        self._ask("Page.addScriptToEvaluateOnNewDocument", source=ALL_OF_IT)

    def _ask(self, method: str, **params: Any) -> dict[str, Any]:
        self._sent += 1
        self._socket.send(
            json.dumps({"id": self._sent, "method": method, "params": params})
        )
        while (answer := json.loads(self._socket.recv(timeout=TIMEOUT_S))).get(
            "id"
        ) != self._sent:
            self._note(
                answer.get("method", ""), answer.get("params", {}).get("requestId")
            )
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']['message']}")
        found: dict[str, Any] = answer["result"]
        return found

    def _note(self, event: str, request: str | None) -> None:
        if request and event == "Network.requestWillBeSent":
            self._loading.add(request)
        elif request and event in ("Network.loadingFinished", "Network.loadingFailed"):
            self._loading.discard(request)

    def open(self, address: str, page: str) -> None:
        """`page` of the TensorBoard at `address`."""
        width, height = PAGES[page]
        self._ask(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        self._ask(
            "Page.navigate", url="about:blank"
        )  # another hash alone would not load the page anew
        self._loading.clear()
        self._ask("Page.navigate", url=f"{address}#{page}{AS_MEASURED}")

    def text(self) -> str:
        return str(
            self._ask("Runtime.evaluate", expression=TEXT, returnByValue=True)[
                "result"
            ].get("value", "")
        )

    def settle(self) -> str:
        """Wait until nothing is added to the page any more: its text."""
        before = [""]

        def same() -> bool:
            time.sleep(SETTLED_S)
            before.append(self.text())
            return (
                before[-1] == before[-2]
                and before[-1].count("\n") > SHELL
                and not self._loading
            )

        until(same, "the page to be filled in")
        return before[-1]

    def picture(self) -> bytes:
        return base64.b64decode(
            self._ask("Page.captureScreenshot", format="png")["data"]
        )


def until(condition: Callable[[], Any], what: str) -> Any:
    """What `condition` gives, once that is something. Raises TimeoutError."""
    end = time.monotonic() + TIMEOUT_S
    while not (found := condition()):
        if time.monotonic() > end:
            raise TimeoutError(f"waited {TIMEOUT_S:.0f} s for {what}")
        time.sleep(0.2)
    return found


@contextmanager
def started(command: list[str], log: Path, cwd: Path | None = None) -> Iterator[None]:
    """A program with all that it starts, to be ended together."""
    with log.open("wb") as said:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            cwd=cwd,
            start_new_session=True,
        )
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        process.wait(TIMEOUT_S)


@contextmanager
def tensorboard(logdir: Path) -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        command = [
            sys.executable,
            "-m",
            "tensorboard.main",
            "--logdir",
            ".",
            "--host",
            "127.0.0.1",
            "--port",
            "0",
        ]
        with started(command, log, cwd=logdir):  # whose path the pages show
            yield until(
                lambda: re.search(r"at (http://\S+/) ", log.read_text()), "TensorBoard"
            )[1]


@contextmanager
def browser() -> Iterator[Page]:
    """A tab of a headless Chromium. Raises FileNotFoundError, ImportError when it or `websockets` is not
    installed.
    """
    from websockets.sync.client import connect

    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        raise FileNotFoundError(
            f"no browser: none of {', '.join(BROWSERS)} is installed"
        )
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        flags = (
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--no-first-run",
            "--disable-background-networking",
            "--hide-scrollbars",
        )
        command = [
            program,
            *flags,
            f"--user-data-dir={folder}",
            "--remote-debugging-port=0",
            "about:blank",
        ]
        told = Path(folder) / "DevToolsActivePort"
        with started(command, Path(folder) / "log"):
            until(lambda: told.exists() and told.read_text().count("\n"), "the browser")
            port = told.read_text().splitlines()[0]

            def tab() -> str | None:
                with urllib.request.urlopen(
                    f"http://127.0.0.1:{port}/json/list"
                ) as answer:
                    return next(
                        (
                            one["webSocketDebuggerUrl"]
                            for one in json.load(answer)
                            if one["type"] == "page"
                        ),
                        None,
                    )

            with connect(
                until(tab, "its first tab"), max_size=None, proxy=None
            ) as socket:
                yield Page(socket)


def main(argv: list[str]) -> int:
    if len(argv) != 3 or argv[1] not in PAGES or not Path(argv[0]).is_dir():
        got = " ".join(argv) or "nothing"
        print(
            f"screenshots: got {got}; it takes LOGDIR PAGE OUT.png: "
            f"a folder of runs, one of {', '.join(PAGES)}, a file",
            file=sys.stderr,
        )
        return 2
    with tensorboard(Path(argv[0])) as address, browser() as page:
        page.open(address, argv[1])
        page.settle()
        Path(argv[2]).write_bytes(page.picture())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
