"""A TCP proxy before a real server, which loses answers or speaks TLS."""

from __future__ import annotations

import contextlib
import socket
import ssl
import subprocess
import threading
from pathlib import Path
from types import TracebackType
from urllib.parse import urlsplit


class Proxy:
    """Forwards connections. The first `lost_answers` ones are cut when the answer arrives."""

    def __init__(
        self, url: str, *, lost_answers: int = 0, certificate: tuple[Path, Path] | None = None
    ) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        assert parts.port is not None
        self._server = (parts.hostname, parts.port)
        self._lost_answers = lost_answers
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._tls: ssl.SSLContext | None = None
        if certificate is not None:
            self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._tls.load_cert_chain(*certificate)
        self.connections = 0
        scheme = "https" if certificate else "http"
        self.url = f"{scheme}://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # Closing alone does not wake the thread that accepts.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            is_lost = self.connections <= self._lost_answers
            threading.Thread(target=self._serve, args=(client, is_lost), daemon=True).start()

    def _serve(self, client: socket.socket, is_lost: bool) -> None:
        # A client that does not trust the certificate leaves.
        with contextlib.suppress(OSError), client:
            if self._tls is not None:
                client = self._tls.wrap_socket(client, server_side=True)
            with client, socket.create_connection(self._server) as server:
                requests = threading.Thread(target=_forward, args=(client, server))
                requests.start()
                if is_lost:
                    with contextlib.suppress(OSError):
                        server.recv(1)
                    _shut_down(client, server)
                else:
                    _forward(server, client)
                requests.join()


def _forward(source: socket.socket, to: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while piece := source.recv(65536):
            to.sendall(piece)
    _shut_down(source, to)


def _shut_down(*ends: socket.socket) -> None:
    # Closing would not end a connection that a thread reads from.
    for end in ends:
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


def make_certificate(directory: Path) -> tuple[Path, Path]:
    """Make a certificate of this host and its key, which it signs itself."""
    certificate, key = directory / "cert.pem", directory / "key.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
    names = ["-subj", "/CN=test", "-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*command.split(), *names, *files], check=True, capture_output=True)
    return certificate, key
