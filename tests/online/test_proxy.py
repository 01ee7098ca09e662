"""The proxy that docs/service.md shows, deploy/nginx.conf, in front of the service: TLS, and slow senders kept away."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPSConnection
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from crashing import free_port
from livestore import Made, learnt, the_events
from service_client import Client
from test_front import certified
from test_service import served
from tracecvr.online.service.auth import Token, Tokens, new_token

CONFIG = Path(__file__).parents[2] / "deploy" / "nginx.conf"
NAME = "model.example.org"
pytestmark = pytest.mark.skipif(
    shutil.which("nginx") is None or shutil.which("openssl") is None, reason="needs nginx and openssl on PATH"
)


@contextmanager
def proxied(url: str, room: Path) -> Iterator[int]:
    """nginx with the deployed configuration, its addresses and files replaced by ours; the port that it listens at."""
    certificate, key = certified(room, NAME)
    port, text = free_port(), CONFIG.read_text()
    for deployed, ours in (
        ("127.0.0.1:8000", urlsplit(url).netloc),
        ("listen 443 ssl", f"listen 127.0.0.1:{port} ssl"),
        ("/etc/tracecvr/certificate.pem", str(certificate)),
        ("/etc/tracecvr/key.pem", str(key)),
        ("client_header_timeout 10s", "client_header_timeout 1s"),
        ("client_body_timeout 10s", "client_body_timeout 1s"),
    ):
        assert text.count(deployed) == 1, deployed
        text = text.replace(deployed, ours)
    (room / "tracecvr.conf").write_text(text)
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    temporary = " ".join(f"{kind}_temp_path {room / kind};" for kind in kinds)
    (room / "nginx.conf").write_text(
        f"daemon off; pid {room / 'pid'}; error_log {room / 'errors'}; events {{}} "
        f"http {{ access_log off; {temporary} include {room / 'tracecvr.conf'}; }}"
    )
    process = subprocess.Popen(["nginx", "-p", str(room), "-e", str(room / "errors"), "-c", str(room / "nginx.conf")])
    try:
        for _ in range(100):
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            time.sleep(0.05)
        yield port
    finally:
        process.terminate()
        process.wait(20)


def test_the_service_behind_the_proxy_that_is_shown(made: Made, tmp_path: Path) -> None:
    store, (token, digest) = made("vanilla"), new_token()
    learnt(store)
    tokens = Tokens((Token("me", digest, frozenset(["score"])),))
    with served(store, tokens, names=(NAME,)) as url, proxied(url, tmp_path) as port:
        context = ssl.create_default_context(cafile=str(tmp_path / "certificate.pem"))
        context.check_hostname = False  # it is asked at 127.0.0.1
        client = Client(f"https://127.0.0.1:{port}", token)
        client._connection = HTTPSConnection("127.0.0.1", port, context=context, timeout=20)
        headers = {"Host": NAME, "Authorization": f"Bearer {token}"}

        def status(path: str, body: bytes | None, **sent: str) -> int:
            connection = HTTPSConnection("127.0.0.1", port, context=context, timeout=20)
            connection.request("GET" if body is None else "POST", path, body, headers | sent)
            found = connection.getresponse().status
            connection.close()
            return found

        assert client.score([the_events()[0]["features"]])["scores"]
        client.close()
        assert status("/v1/model", None) == 200
        assert status("/v1/model", None, Host="evil.example") == 421
        assert status("/v1/model", None, Authorization="Bearer nobody") == 401
        assert status("/v1/score", b"x" * 300_000) == 413
        for half in (
            b"GET / HTTP/1.1\r\n",
            f"POST /v1/score HTTP/1.1\r\nHost: {NAME}\r\nContent-Length: 9\r\n\r\n1".encode(),
        ):
            with socket.create_connection(("127.0.0.1", port), 20) as plain, context.wrap_socket(plain) as slow:
                slow.sendall(half)
                with suppress(ConnectionResetError):
                    told = slow.recv(1000)
                    assert told == b"" or b" 408 " in told
