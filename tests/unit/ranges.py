"""A web server for tests: ranges, ETags, lists of folders, latency, and answers that fail in a given way."""

from __future__ import annotations

import threading
import time
from base64 import b64encode
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit


@dataclass
class Server:
    """Serves the files of a folder; every `fails_each`-th answer with bytes of a file fails as `how` says."""

    root: Path
    url: str = ""
    latency_s: float = 0.0
    fails_each: int = 0
    how: tuple[str, ...] = ()
    lists: bool = True
    ranges: bool = True
    forbids: bool = False
    login: str = ""  # name:password that it wants
    query: str = ""  # that it wants
    etags: dict[str, str] = field(default_factory=dict)
    asked: Counter[str] = field(default_factory=Counter)  # path -> answers that began
    paths: list[str] = field(default_factory=list)  # as they came, with their queries
    under_way: int = 0
    most_under_way: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def fault(self, path: str) -> str:
        with self.lock:
            self.asked[path] += 1
            count = self.asked.total()
        if self.fails_each and count % self.fails_each == 0:
            return self.how[count // self.fails_each % len(self.how)]
        return ""


@contextmanager
def serving(root: Path) -> Iterator[Server]:
    """Serve a folder on this machine while the body runs."""
    server = Server(root=root)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # else the body waits 40 ms for the header's acknowledgement
        disable_nagle_algorithm = True

        def log_message(self, *args: object) -> None:
            """Say nothing."""

        def do_HEAD(self) -> None:
            self.answer(body=False)

        def do_GET(self) -> None:
            with server.lock:
                server.under_way += 1
                server.most_under_way = max(server.most_under_way, server.under_way)
            try:
                self.answer(body=True)
            finally:
                with server.lock:
                    server.under_way -= 1

        def refuse(self, status: int) -> None:
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def answer(self, *, body: bool) -> None:
            server.paths.append(self.path)
            name = unquote(urlsplit(self.path).path).strip("/")
            path = server.root / name
            time.sleep(server.latency_s)
            login = b64encode(server.login.encode()).decode()
            if login not in self.headers.get("Authorization", ""):
                self.refuse(401)
            elif server.forbids or not self.path.endswith(server.query):
                self.refuse(403)
            elif path.is_dir() and server.lists:
                rows = [own.name + "/" * own.is_dir() for own in sorted(path.iterdir())]
                self.send(
                    200,
                    "".join(f'<a href="{row}">{row}</a>\n' for row in rows).encode(),
                    {"Content-Type": "text/html"},
                )
            elif not path.is_file():
                self.refuse(404)
            else:
                self.file(path, name, body=body)

        def file(self, path: Path, name: str, *, body: bool) -> None:
            content = path.read_bytes()
            told = {
                "ETag": server.etags.get(name, f'"{path.stat().st_mtime_ns}"'),
                "Accept-Ranges": "bytes",
            }
            status = 200
            fault = server.fault(name) if body else ""
            if fault == "reset":
                self.close_connection = True
                self.connection.close()
                return
            if fault.isdecimal():
                self.refuse(int(fault))
                return
            wanted = self.headers.get("Range", "").removeprefix("bytes=")
            whole = len(content)
            if wanted and server.ranges:
                begin, _, end = wanted.partition("-")
                last = min(int(end or whole - 1), whole - 1)
                content = content[int(begin) : last + 1]
                told["Content-Range"] = f"bytes {begin}-{last}/{whole}"
                status = 206
            self.send(status, content, told, body=body, cut=fault == "cut")

        def send(
            self,
            status: int,
            content: bytes,
            told: dict[str, str],
            *,
            body: bool = True,
            cut: bool = False,
        ) -> None:
            self.send_response(status)
            for key, value in {**told, "Content-Length": str(len(content))}.items():
                self.send_header(key, value)
            self.end_headers()
            if body:
                self.wfile.write(content[: len(content) // 2] if cut else content)
            if cut:
                self.close_connection = True

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        listening.daemon_threads = True
        server.url = f"http://127.0.0.1:{listening.server_address[1]}"
        thread = threading.Thread(
            target=listening.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
        )
        thread.start()
        try:
            yield server
        finally:
            listening.shutdown()
            thread.join()
