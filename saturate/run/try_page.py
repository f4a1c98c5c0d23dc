"""`saturate try runs/photos/best.pt`: a page of this machine on which a photo is dropped, and answers come back.

The answers are those of --predict, which makes them. It listens on 127.0.0.1 alone and takes nothing from pages of
other sites; a photo has at most 50 megapixels, and is not kept.
"""

from __future__ import annotations

import csv
import tempfile
from collections.abc import Sequence
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import torch

from saturate.contracts import UserError
from saturate.dataset.images.headers import read_header
from saturate.dataset.scan.manifest import Rejected
from saturate.engine.checkpoint import Resume
from saturate.engine.distributed import ProcessWorld, prepare_process
from saturate.report import page
from saturate.report.console import Console
from saturate.run.predict import predict
from saturate.run.program import Parser
from saturate.settings.config import given, parse
from saturate.system.exit_codes import DONE, of_program
from saturate.tasks.initial_state import Start

MOST_PIXELS = 50_000_000
MOST_BYTES = 200_000_000
FORM = """<form method="post" enctype="multipart/form-data">
<input type="file" name="photo" accept="image/*" required aria-label="Photo"> <button>Ask</button></form>"""
Shares = dict[str, float]
"""Class -> its probability, in percent."""


def started(checkpoint: Path, *words: str) -> tuple[Start, Resume]:
    """Return the start of a prediction. Raises UserError, also of a network that is no classifier of images."""
    words = ("--resume", str(checkpoint), "--workers", "0", *words)
    asked = parse([*words])
    resume = Resume.find(asked.run)
    start = Start.from_config(
        asked, given([*words]), resume.content, path=resume.path, origin=resume.origin
    )
    if (task := start.config.model.task) != "classification":
        raise UserError(
            f"{checkpoint} is of --task {task}; try takes --task classification"
        )
    return start, resume


def answer(checkpoint: Path, device: torch.device, content: bytes) -> Shares:
    """Return what --predict says of a file. Raises UserError, and Rejected."""
    header = read_header(len(content), lambda at, length: content[at : at + length])
    if header.width * header.height > MOST_PIXELS:
        raise Rejected(
            f"has {header.width} x {header.height} pixels, more than 50 megapixels"
        )
    with tempfile.TemporaryDirectory() as folder:
        new, out, scan = (str(Path(folder, name)) for name in ("new", "out", "scan"))
        Path(new).mkdir()
        Path(new, "photo").write_bytes(content)
        words = "--predict", new, "--output", out, "--manifest-dir", scan
        if code := predict(
            *started(checkpoint, *words), ProcessWorld(device), Console(enabled=False)
        ):
            raise SystemExit(code)
        with Path(out, "predictions.csv").open(encoding="utf-8", newline="") as file:
            (row,) = csv.DictReader(file)
    if row["error"]:
        raise Rejected(row["error"])
    return {
        cell: 100 * float(row[name.replace("class", "probability")])
        for name, cell in row.items()
        if name.startswith("class")
    }


class Page(BaseHTTPRequestHandler):
    """Shows the form, and answers what is sent by it."""

    # browsers open connections in advance, and one is served at a time
    timeout = 2

    def __init__(self, checkpoint: Path, device: torch.device, *of_server: Any) -> None:
        self.answer = partial(answer, checkpoint, device)
        self.about = [checkpoint.name, str(checkpoint)]
        super().__init__(*of_server)

    def parse_request(self) -> bool:
        """Return whether the request is of this page: one of another site may have a name that leads here."""
        if not super().parse_request():
            return False
        host = self.headers.get("Host", "")
        own = host.partition(":")[0] in ("127.0.0.1", "localhost")
        if own and self.headers.get("Origin", f"http://{host}") == f"http://{host}":
            return True
        self.send_error(403)
        return False

    def do_GET(self) -> None:
        self.reply("Drop a photo on the field below, or choose one")

    def do_POST(self) -> None:
        length_header = self.headers.get("Content-Length", "")
        length = int(length_header) if length_header.isdecimal() else -1
        if not 0 <= length <= MOST_BYTES:
            most = MOST_BYTES // 1_000_000
            self.reply(f"A file of at most {most} MB is taken", code=413)
            return
        # of a form with one file: its head, an empty line, the bytes and the boundary
        end = f"\r\n--{self.headers.get_boundary()}--".encode()
        body = self.rfile.read(length).partition(b"\r\n\r\n")[2].rpartition(end)[0]
        try:
            shares = self.answer(body)
        except (UserError, Rejected, RuntimeError) as error:
            self.reply(f"The file cannot be taken: {error}", code=400)
        else:
            first = next(iter(shares))
            self.reply(f"{shares[first]:.1f} %", first, page.bars(shares, "%"))

    def reply(
        self, behind: str, best: str = "", answers: str = "", code: int = 200
    ) -> None:
        """Send the page with the answers and the form."""
        parts = {"Answers": answers, "Photo": FORM}
        content = page.document(self.about, best, behind, parts)
        self.send_response(code)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *values: object) -> None:
        """Say nothing of requests."""


def serve(checkpoint: Path, port: int) -> int:
    """Answer until Ctrl-C. Raises UserError."""
    handler = partial(Page, checkpoint, prepare_process())
    started(checkpoint, "--predict", ".")
    with HTTPServer(("127.0.0.1", port), handler) as server:
        print(f"http://127.0.0.1:{server.server_port} answers until Ctrl-C", flush=True)
        server.serve_forever()
    return DONE


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 2 for a mistake, 130 on Ctrl-C."""
    parser = Parser("try", __doc__)
    parser.add_argument("checkpoint", type=Path, help="best.pt of a run")
    parser.add_argument(
        "--port", type=int, default=8765, help="default: 8765; 0 = a free one"
    )
    options = parser.parse_args(arguments)
    if not 0 <= options.port < 1 << 16:
        parser.error(f"--port {options.port}: 0 to 65535")
    return of_program("try", lambda: serve(options.checkpoint, options.port))
