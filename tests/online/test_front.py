"""What the service does with connections and requests that no good client makes: nobody else is harmed by them."""

from __future__ import annotations

import errno
import json
import re
import resource
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from http.client import HTTPConnection
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import Mock
from urllib.parse import quote, urlsplit

import pytest

from crashing import free_port
from livestore import SMALL, Made, learnt, the_events
from service_client import Client
from test_service import GENEROUS, asked, ready, served, until, without_type
from tracecvr.base import files, registry
from tracecvr.base.errors import UserError
from tracecvr.online.learner.archive import erase
from tracecvr.online.log.event_log import EventLog
from tracecvr.online.service.auth import Token, Tokens, new_token
from tracecvr.online.service.front import name_of, page_policy
from tracecvr.online.service.options import Limits
from tracecvr.online.service.scorer import LiveScorer
from tracecvr.online.service.serve import Config, Watch, descriptors
from tracecvr.online.store.store import Settings, Store

__all__ = ["ready"]  # a fixture

IMPATIENT = Limits(rate=10_000, requests=8, head_seconds=1.5, body_seconds=1.5, idle_seconds=1)
HALF_A_HEAD = b"GET /v1/model HTTP/1.1\r\nHost: loc"
HALF_A_BODY = b"POST /v1/score HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{"
FEATURES = [the_events()[0]["features"]]
BAD_HOST = {"Host": "evil.example"}


@pytest.fixture(scope="module")
def store(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Store:
    """One that has a version, for tests that leave it as it is or only add to it."""
    method = registry.get("method", "vanilla")(**SMALL)
    found = Store.create(tmp_path_factory.mktemp("front") / "store", base, method, (), Settings())
    learnt(found)
    return found


def connected(url: str, said: bytes = b"", source: str = "127.0.0.1") -> socket.socket:
    """A connection on which something was said."""
    where = urlsplit(url)
    found = socket.create_connection((where.hostname or "", where.port or 80), timeout=20, source_address=(source, 0))
    if said:
        found.sendall(said)
    return found


def is_open(connection: socket.socket) -> bool:
    """Whether the other side has neither closed a connection nor said anything."""
    connection.setblocking(False)
    try:
        connection.recv(1)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def heard(connection: socket.socket) -> bytes:
    """All that is said on a connection until it is closed."""
    found = b""
    while part := connection.recv(65_536):
        found += part
    return found


def answered_ok(connection: socket.socket) -> None:
    """Wait for the answer of /healthz."""
    told = b""
    while not told.endswith(b"ok"):
        told += connection.recv(10_000)


def seconds_until_closed(connection: socket.socket, now_and_then: bytes) -> float:
    """How long a connection is kept though a few bytes are sent now and then; half a minute at most."""
    since = time.monotonic()
    while is_open(connection) and time.monotonic() < since + 30:
        with suppress(OSError):  # it may be closed just now
            connection.sendall(now_and_then)
        time.sleep(0.1)
    return time.monotonic() - since


def headers_of(url: str, method: str, path: str, sent: dict[str, str] | None = None) -> tuple[int, dict[str, str], str]:
    """Status, headers and text of an answer."""
    where = urlsplit(url)
    connection = HTTPConnection(where.hostname or "", where.port, timeout=20)
    connection.request(
        method, path, b"{}" if method == "POST" else None, {"Content-Type": "application/json"} | (sent or {})
    )
    response = connection.getresponse()
    text = response.read().decode()
    connection.close()
    return response.status, {name.lower(): value for name, value in response.getheaders()}, text


# Connections.


def test_idle_and_slow_connections_stop_nobody_and_are_closed_in_time(store: Store) -> None:
    """More of each kind than requests may be at work. benchmarks/front.py measures the same with more of them."""
    limits = replace(IMPATIENT, head_seconds=4, body_seconds=4)
    with served(store, limits=limits) as url, ExitStack() as held, Client(url, retries=0) as client:
        since = time.monotonic()
        idle = [held.enter_context(connected(url)) for _ in range(300)]
        slow = [held.enter_context(connected(url, said)) for said in (HALF_A_HEAD, HALF_A_BODY) for _ in range(25)]
        for connection in slow:
            connection.sendall(b"a")
        assert all(map(is_open, idle)) or time.monotonic() > since + 4, "they have some time"
        for _ in range(20):
            assert client.score(FEATURES)["scores"]
        assert asked(url, "GET", "/healthz") == (200, "ok")
        until(lambda: not any(map(is_open, idle)), 10)
        for connection in slow:
            connection.settimeout(10)
        assert [heard(connection) for connection in slow[:25]] == [b""] * 25
        assert all(b" 408 " in heard(connection) for connection in slow[25:])
        assert asked(url, "GET", "/v1/model")[0] == 200


def test_bytes_now_and_then_do_not_keep_a_connection(store: Store) -> None:
    with served(store, limits=IMPATIENT) as url, connected(url, b"GET / HTTP/1.1\r\nHost: localhost\r\n") as dribbling:
        assert 1 < seconds_until_closed(dribbling, b"a: b\r\n") < 10


def test_a_look_tells_one_request_from_the_next() -> None:
    busy, slow = (Mock(**{"flow.write_paused": False, "timeout_keep_alive_task": None}) for _ in range(2))
    watch, body = Watch(Config(None, Limits(body_seconds=10)), [busy, slow]), Mock(more_body=True)
    for second in range(17):
        busy.cycle, slow.cycle = Mock(more_body=True), body
        watch.look(float(second))
    slow.transport.abort.assert_called_once()
    busy.transport.abort.assert_not_called()


def test_a_connection_is_kept_between_requests_for_a_while(store: Store) -> None:
    request = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with served(store, limits=replace(IMPATIENT, idle_seconds=2)) as url, connected(url) as kept:
        for pause in (0.0, 0.9, 0.9, 0.9):  # together longer than any of the limits
            time.sleep(pause)
            kept.sendall(request)
            answered_ok(kept)
        assert heard(kept) == b""


def test_what_is_left_of_a_body_that_nobody_wanted_is_not_read_for_ever(store: Store) -> None:
    head = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n"
    with served(store, limits=IMPATIENT) as url, connected(url, head) as endless:
        answered_ok(endless)
        assert seconds_until_closed(endless, b"x") < 10


def test_who_does_not_read_his_answers_is_dropped(store: Store) -> None:
    with served(store, limits=IMPATIENT) as url, connected(url) as deaf:
        deaf.settimeout(0.2)
        request = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n"

        def is_cut_off() -> bool:
            try:
                deaf.sendall(request * 100)
            except TimeoutError:
                return False
            except OSError:
                return True
            return False

        until(is_cut_off, 15)
        assert asked(url, "GET", "/healthz") == (200, "ok")


def test_a_body_that_is_being_sent_does_not_keep_it_from_stopping(store: Store) -> None:
    with ExitStack() as held:
        with served(store, limits=replace(GENEROUS, body_seconds=60)) as url:
            for said in (HALF_A_BODY, HALF_A_HEAD, b""):
                held.enter_context(connected(url, said))
            until(lambda: "tracecvr_requests" in asked(url, "GET", "/metrics")[1])
            since = time.monotonic()
        assert time.monotonic() < since + 10


def test_strangers_write_no_log_lines(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    upgrade = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: upgrade, close\r\nUpgrade: websocket\r\n\r\n"
    with served(store) as url:
        for said, status in ((b"nonsense\r\n\r\n", b" 400 "), (upgrade, b" 200 "), (b"\x16\x03\x01\r\n\r\n", b" 400 ")):
            with connected(url, said) as connection:
                assert status in heard(connection).partition(b"\r\n")[0]
    assert caplog.text == ""


def test_of_a_failure_of_ours_the_log_tells_where_and_nothing_of_the_request(
    store: Store, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(_: LiveScorer, clicks: list[Any]) -> Any:
        raise ValueError(f"cannot do {clicks}\nERROR forged line")

    monkeypatch.setattr(LiveScorer, "score", failing)
    body = json.dumps({"features": [FEATURES[0] | {"item": "secret"}]}).encode()
    with served(store) as url:
        status, told = asked(url, "POST", "/v1/score", body)
        counted = asked(url, "GET", "/metrics")[1]
    assert (status, list(told)) == (500, ["error"])
    assert 'route="/v1/score",status="500"} 1.0' in counted
    (record,) = caplog.records
    assert re.fullmatch(r"a request failed: ValueError at (\S+:\d+ > ){3}test_front.py:\d+", record.getMessage())
    assert record.exc_info is None


def test_what_is_sent_is_a_value_and_never_a_statement_a_path_or_a_name_of_ours(
    made: Made, caplog: pytest.LogCaptureFixture
) -> None:
    evil = "x'); DROP TABLE events; --"
    store = made("vanilla")
    learnt(store)
    click = next(without_type(e) for e in the_events() if e["type"] == "click")
    with served(store) as url, Client(url, retries=0) as client:
        client.clicks([click | {"click_id": evil, "user": evil}])
        client.events([{"type": "cart", "click_id": evil, "ts": click["ts"] + 9, "user": evil, "event_id": evil}])
        assert client.click(evil)["actions"] == {"cart": 9}
        for path in ("/v1/clicks/../../etc/passwd", "/../../etc/passwd", f"/{quote(evil)}", "/v1/secret"):
            assert asked(url, "GET", path)[0] == 404
        counted = asked(url, "GET", "/metrics")[1]
    assert erase(store, evil) == (1, 1)
    assert not any(word in counted + caplog.text for word in ("DROP", "passwd", "secret"))


def test_the_body_of_a_stranger_is_not_waited_for(store: Store) -> None:
    tokens = Tokens((Token("me", new_token()[1], frozenset(["score"])),))
    with served(store, tokens, replace(GENEROUS, body_seconds=60)) as url, connected(url, HALF_A_BODY) as stranger:
        assert b" 401 " in stranger.recv(1_000)


def test_a_body_that_nobody_asked_for_is_not_read(store: Store) -> None:
    with served(store) as url, connected(url, HALF_A_BODY.replace(b"/v1/score", b"/healthz")) as posting:
        assert b" 405 " in posting.recv(1_000), "at once, though not all of it was sent"


def test_of_too_many_connections_the_new_ones_are_closed(store: Store) -> None:
    with served(store, limits=Limits(connections=5)) as url, ExitStack() as held:
        open_ones = [held.enter_context(connected(url)) for _ in range(5)]
        until(lambda: not is_open(held.enter_context(connected(url))))
        assert all(map(is_open, open_ones))
        open_ones[0].sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        open_ones[0].settimeout(20)
        assert b" 200 " in heard(open_ones[0])
        until(lambda: is_open(held.enter_context(connected(url))))


def test_what_is_at_work_is_bounded_and_not_given_up(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    entered, may_go, append = threading.Semaphore(0), threading.Event(), EventLog.append_all

    def waiting(*given: Any) -> Any:
        entered.release()
        assert may_go.wait(20)
        return append(*given)

    answers: list[Any] = []
    clicks = [without_type(event) for event in the_events()[600:] if event["type"] == "click"][10:12]
    with served(store, limits=Limits(requests=2)) as url, ExitStack() as held:
        monkeypatch.setattr(EventLog, "append_all", waiting)

        def register(click: dict[str, Any]) -> None:
            body = json.dumps({"clicks": [click]}).encode()
            while (answer := asked(url, "POST", "/v1/clicks", body))[0] == 503:  # the model was asked for just then
                pass
            answers.append(answer)

        threads = [threading.Thread(target=register, args=(click,)) for click in clicks]
        for thread in threads:
            thread.start()
        assert entered.acquire(timeout=20), "the other waits for the disk, too"
        until(lambda: headers_of(url, "GET", "/v1/model")[0] == 503)
        status, headers, told = headers_of(url, "GET", "/v1/model")
        assert (status, headers["retry-after"], "too many requests at work" in told) == (503, "1", True)
        status, headers, told = headers_of(url, "POST", "/v1/score")
        assert (status, headers["retry-after"], "too many requests at work" in told) == (503, "1", True)
        assert asked(url, "GET", "/healthz") == (200, "ok")
        assert asked(url, "GET", "/readyz")[0] == 200
        for _ in range(10):
            held.enter_context(connected(url))
        may_go.set()
        for thread in threads:
            thread.join()
        assert [status for status, _ in answers] == [200, 200]
        assert asked(url, "GET", "/v1/model")[0] == 200


@contextmanager
def served_by_a_process(store: Store, *flags: str, files_allowed: tuple[int, int]) -> Iterator[str]:
    """`tracecvr serve` without a learner, with so many file descriptors."""
    port = free_port()
    words = [
        sys.executable,
        "-m",
        "tracecvr.cli",
        "serve",
        str(store.folder),
        "--no-learn",
        "--port",
        str(port),
        *flags,
    ]
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    resource.prlimit(process.pid, resource.RLIMIT_NOFILE, files_allowed)
    try:
        assert process.stderr is not None
        assert "listening" in process.stderr.readline()
        yield f"{'https' if flags else 'http'}://127.0.0.1:{port}"
        assert process.poll() is None
    finally:
        process.kill()
        process.communicate()


def test_connections_leave_file_descriptors_for_the_work(store: Store) -> None:
    with served_by_a_process(store, files_allowed=(100, 400)) as url, ExitStack() as held:
        client = held.enter_context(Client(url, retries=20))  # until idle connections are closed, after ten seconds
        for _ in range(600):
            held.enter_context(connected(url))
        assert client.score(FEATURES)["scores"]
        (click,) = [without_type(e) for e in the_events()[600:] if e["type"] == "click"][:1]
        assert client.clicks([click])["accepted"] == 1


def test_the_limit_of_file_descriptors_is_raised_if_it_may_be() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (600, hard))
        assert descriptors(100) == 344
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 600
        assert descriptors(1000) == 1000
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 1256
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def certified(room: Path, name: str) -> tuple[Path, Path]:
    """A certificate that signs itself, and its key."""
    certificate, key = room / "certificate.pem", room / "key.pem"
    making = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={name}", "-days", "2"]
    subprocess.run([*making, "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True)
    return certificate, key


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes a certificate with openssl")
def test_it_speaks_tls(store: Store, tmp_path: Path) -> None:
    certificate, key = certified(tmp_path, "localhost")
    flags = ["--certificate", str(certificate), "--key", str(key)]
    with served_by_a_process(store, *flags, files_allowed=(1024, 4096)) as url:
        trusting = ssl.create_default_context(cafile=str(certificate))
        trusting.check_hostname = False  # it is asked at 127.0.0.1
        with connected(url) as plain, trusting.wrap_socket(plain) as encrypted:
            encrypted.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            assert encrypted.recv(100).startswith(b"HTTP/1.1 200 ")


# Names, and what browsers are told.


def test_without_tokens_it_is_asked_by_its_own_names_only(store: Store) -> None:
    routes = [("GET", "/v1/status"), ("POST", "/v1/promote"), ("GET", "/"), ("GET", "/metrics"), ("GET", "/nowhere")]
    hosts = ["evil.example", "evil.example:8000", "localhost.evil.example", "", "[::2]", "127.0.0.2", "localhost@evil"]
    with served(store) as url:
        for (method, path), host in product(routes, hosts):
            status, _, told = headers_of(url, method, path, {"Host": host})
            assert status == 421, host
            assert list(json.loads(told)) == ["error"]
            assert "\n" not in told
            assert "evil" not in told
        assert headers_of(url, "GET", "/healthz", BAD_HOST)[0] == 200


def test_names_that_it_is_given_are_its_own_with_tokens_too(store: Store) -> None:
    token, digest = new_token()
    tokens = Tokens((Token("me", digest, frozenset(["score"])),))

    def status(url: str, host: str) -> int:
        return headers_of(url, "GET", "/v1/model", {"Host": host, "Authorization": f"Bearer {token}"})[0]

    with served(store, names=("Model.Example",)) as url:
        for host in ("localhost", "LocalHost:80", "127.0.0.1:1", "[::1]:8000", "model.example", "model.example.:80"):
            assert status(url, host) == 200, host
        assert status(url, "evil.example") == 421
    with served(store, tokens, names=("model.example",)) as url:
        assert status(url, "model.example") == 200
        assert status(url, "evil.example") == 421
    with served(store, tokens) as url:
        assert status(url, "any.example") == 200, "a token protects it"


def test_a_page_of_another_site_may_not_ask(store: Store) -> None:
    with served(store) as url:
        for origin in ("https://evil.example", "null", "http://127.0.0.1.evil.example:8000"):
            assert headers_of(url, "POST", "/v1/promote", {"Origin": origin})[0] == 403
        assert headers_of(url, "POST", "/v1/promote", {"Origin": url})[0] == 422, "nothing was chosen, but it may"


def test_a_name_is_what_stands_before_the_port() -> None:
    found = [name_of(host) for host in ("A.b:1", "[::1]:80", "[::1]", "c.", ":80", "")]
    assert found == ["a.b", "::1", "::1", "c", "", ""]


def test_every_answer_tells_a_browser_to_be_careful(store: Store) -> None:
    big = {"Content-Length": "9999999"}
    with served(store) as url:
        for method, path, sent, expected in (
            ("GET", "/", {}, 200),
            ("GET", "/v1/status", {}, 200),
            ("GET", "/healthz", {}, 200),
            ("GET", "/nowhere", {}, 404),
            ("POST", "/v1/score", {}, 422),
            ("POST", "/v1/score", big, 413),
            ("GET", "/v1/status", BAD_HOST, 421),
        ):
            status, headers, _ = headers_of(url, method, path, sent)
            assert status == expected
            assert "frame-ancestors 'none'" in headers["content-security-policy"]
            assert "default-src 'none'" in headers["content-security-policy"]
            assert "unsafe" not in headers["content-security-policy"]
            assert headers["x-frame-options"] == "DENY"
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["referrer-policy"] == "no-referrer"
            assert headers["cache-control"] == "no-store"
            assert "server" not in headers


def test_the_page_needs_no_more_than_its_policy_allows(store: Store) -> None:
    """test_page_drawn.py shows it in a browser."""
    with served(store) as url:
        _, headers, page = headers_of(url, "GET", "/")
    assert headers["content-security-policy"] == page_policy(page)
    assert headers["content-security-policy"].count("'sha256-") == 2
    assert len(re.findall("<(script|style)[ >]", page)) == 2
    assert not re.search(r"<[^>]+\s(style|on\w+)\s*=", page)
    assert not re.search(r'setAttribute\("style|style:|eval\(|innerHTML', page.partition("<script>")[2])
    assert page_policy(page.replace('"use strict"', '"use sloppy"')) != page_policy(page)


def test_nothing_is_answered_with_the_name_that_was_asked_for(store: Store) -> None:
    token, digest = new_token()
    with served(store, Tokens((Token("me", digest, frozenset(["score"])),))) as url:
        for path in ("/v1/model/", "/v1/clicks", "/healthz/", "//evil.example/", "/v1/clicks/"):
            sent = BAD_HOST | {"Authorization": f"Bearer {token}"}
            status, headers, told = headers_of(url, "GET", path, sent)
            assert status in (404, 405)
            assert "location" not in headers
            assert "evil" not in told


# Bodies.


def test_two_lengths_of_one_body_are_refused(store: Store) -> None:
    head = b"POST /v1/score HTTP/1.1\r\nHost: localhost\r\n"
    hidden = b"0\r\n\r\nGET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with served(store) as url:
        for lengths in (
            b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
            b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
            b"Content-Length: 5\r\nContent-Length: 6\r\n",
        ):
            with connected(url, head + lengths + b"\r\n" + hidden) as smuggling:
                told = heard(smuggling)
            assert told.startswith(b"HTTP/1.1 400 "), lengths
            assert told.count(b"HTTP/1.1") == 1, "what followed was not taken for a request"


@pytest.mark.parametrize("chunked", [False, True])
def test_who_sends_all_before_he_reads_is_told_that_it_is_too_large(store: Store, chunked: bool) -> None:
    part, parts = b"x" * 65_536, 64
    length = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: %d" % (len(part) * parts)
    with served(store) as url, connected(url) as sending:
        sending.sendall(b"POST /v1/score HTTP/1.1\r\nHost: localhost\r\n" + length + b"\r\n\r\n")
        for _ in range(parts):
            sending.sendall(b"10000\r\n" + part + b"\r\n" if chunked else part)
            time.sleep(0.002)
        if chunked:
            sending.sendall(b"0\r\n\r\n")
        told = heard(sending)
        assert b" 413 " in told
        assert told.endswith(b'bytes: send smaller batches"}')
        with pytest.raises(UserError, match="413: the body is larger than"):
            Client(url, retries=0).score([FEATURES[0] | {"item": "x" * 20_000_000}])


# Ids.


def test_an_odd_id_is_not_found(store: Store) -> None:
    huge = ["9223372036854775808", "-9223372036854775808", "9" * 5_000]
    with served(store) as url:
        for name in (*huge, "", "%00", "%ff", "007", "-0", "%D9%A3", "1e3", "..", "a/"):
            for kind in ("", "?type=text", "?type=number"):
                assert asked(url, "GET", f"/v1/clicks/{name}{kind}")[0] == 404, (name, kind)
        assert asked(url, "GET", "/v1/clicks/5?type=both")[0] == 422


def test_a_text_of_digits_is_found_and_told_from_the_number(store: Store) -> None:
    one, two = [without_type(e) for e in the_events()[600:] if e["type"] == "click"][:2]
    with served(store) as url, Client(url) as client:
        client.clicks([one | {"click_id": "777"}])
        assert asked(url, "GET", "/v1/clicks/777")[1]["click_id"] == "777"
        client.clicks([two | {"click_id": 777}, one | {"click_id": "007"}, one | {"click_id": "\u0663"}])
        assert asked(url, "GET", "/v1/clicks/777")[1]["click_id"] == 777, "a number is a number first"
        assert asked(url, "GET", "/v1/clicks/777?type=text")[1]["ts"] == one["ts"]
        assert (client.click("777")["ts"], client.click(777)["ts"]) == (one["ts"], two["ts"])
        assert [client.click(name)["click_id"] for name in ("007", "\u0663")] == ["007", "\u0663"]
        with pytest.raises(UserError, match="404: no such click"):
            client.click(7)


# The disk.


def full(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device", "somewhere")


def read_only(*_: object, **__: object) -> None:
    raise OSError(errno.EROFS, "Read-only file system", "somewhere")


def test_a_choice_that_cannot_be_written_is_the_disks_fault(ready: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    on_read_only: list[tuple[Any, str]] = [(Path, "write_text"), (Path, "unlink")]
    with served(ready) as url:
        before = asked(url, "GET", "/readyz")
        for broken, failing in (([(files, "sync")], full), ([(Path, "rename")], full), (on_read_only, read_only)):
            with monkeypatch.context() as patch:
                for owner, name in broken:
                    patch.setattr(owner, name, failing)
                status, told = asked(url, "POST", "/v1/promote", b'{"version": 0}')
            assert status == 503
            assert told == {"error": "the choice could not be written: the disk is full or read-only"}
            assert asked(url, "GET", "/readyz") == before
        assert asked(url, "POST", "/v1/promote", b'{"version": 0}') == (200, {"serving": 0})


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_nobody_else_reads_the_events(made: Made) -> None:
    store = made("vanilla")
    log = store.log()
    log.append([store.reader.read(event) for event in the_events()[:5]])
    kept = [store.folder / f"events.db{suffix}" for suffix in ("", "-wal", "-shm")]
    assert mode(store.folder) == 0o700
    assert [mode(path) for path in kept] == [0o600] * 3
    for path in kept:
        path.chmod(0o644)  # as somebody may have left them
    store.log().close()
    assert [mode(path) for path in kept] == [0o600] * 3
    for path in kept:
        path.chmod(0o664)
    store.log().close()
    assert [mode(path) for path in kept] == [0o660] * 3, "a group that may write was meant to"
    log.close()
