"""rpc_tracker: addresses, keys, trackers that are not there or are something else: an error each, and no waiting."""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tvm.rpc import base

import tvm_rnn as rnn
from tvm_rnn.tune import rpc_tracker
from tvm_rnn.tune.rpc_tracker import NoDevice, Server, Tracker, tracker

SUMMARY = {
    "server_info": [{"key": "server:pi"}, {"key": "server:pi"}, {"key": "server:nuc"}],
    "queue_info": {"pi": {"free": 1, "pending": 0}, "nuc": {"free": 0, "pending": 0}},
}


@contextmanager
def answering(*answers: Any, magic: int = base.RPC_TRACKER_MAGIC) -> Iterator[int]:
    """The port of something that gives these answers in turn, one per connection, and asks no questions."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            for answer in answers:
                connection, _ = listening.accept()
                with connection:
                    base.recvall(connection, 4)
                    connection.sendall(struct.pack("<i", magic))
                    if answer is not None:
                        size = struct.unpack("<i", base.recvall(connection, 4))[0]
                        base.recvall(connection, size)
                        text = json.dumps(answer).encode()
                        connection.sendall(struct.pack("<i", len(text)) + text)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listening.getsockname()[1]
        thread.join(60)


def here(port: int, key: str = "pi") -> Tracker:
    return Tracker("127.0.0.1", port, key)


@pytest.mark.parametrize(
    ("address", "key", "expected"),
    [
        ("10.0.0.5:9190", None, "a tracker's address alone"),
        (None, "pi", "a device key alone"),
        ("10.0.0.5", "pi", "HOST:PORT"),
        (":9190", "pi", "HOST:PORT"),
        ("10.0.0.5:", "pi", "HOST:PORT"),
        ("10.0.0.5:port", "pi", "HOST:PORT"),
        ("10.0.0.5:70000", "pi", "HOST:PORT"),
        ("10.0.0.5:0", "pi", "HOST:PORT"),
        (9190, "pi", "HOST:PORT"),
        ("10.0.0.5:9190", "", "the device key"),
        ("10.0.0.5:9190", "two words", "the device key"),
        ("10.0.0.5:9190", 7, "the device key"),
    ],
)
def test_what_is_no_address_or_no_key_is_an_error(address: Any, key: Any, expected: str) -> None:
    with pytest.raises(rnn.ConfigError, match=expected):
        tracker(address, key)


def test_addresses_are_read() -> None:
    assert tracker(None, None) is None
    assert tracker("farm.example:9190", "pi") == Tracker("farm.example", 9190, "pi")
    assert tracker("[::1]:9190", "pi") == Tracker("::1", 9190, "pi")


def test_nothing_at_the_address_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    with pytest.raises(rnn.ConfigError, match=r"the RPC tracker does not answer.*\n.*\n.*refused"):
        here(port).check()
    with pytest.raises(rnn.ConfigError, match="the RPC tracker does not answer"):
        Tracker("no.such.host.invalid", 9190, "pi").check()
    with pytest.raises(NoDevice, match="does not answer"):
        here(port).request(1.0)


def test_something_else_at_the_address_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with answering(None, magic=77) as port, pytest.raises(rnn.ConfigError, match="no tracker of TVM"):
        here(port).check()
    with answering([0, "what?"]) as port, pytest.raises(rnn.ConfigError, match="does not answer"):
        here(port).check()
    monkeypatch.setattr(rpc_tracker, "ANSWER_SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(rnn.ConfigError, match="no answer"):
        here(silent.getsockname()[1]).check()


def test_a_key_that_no_server_has_is_an_error_that_says_which_there_are() -> None:
    with answering([0, SUMMARY]) as port, pytest.raises(rnn.ConfigError, match=r"'phone'.* has nuc, pi\n.*do:.*phone"):
        here(port, "phone").check()
    nobody = {"server_info": [], "queue_info": {}}
    with answering([0, nobody]) as port, pytest.raises(rnn.ConfigError, match="has no servers at all"):
        here(port).check()


def test_servers_are_counted_and_a_free_one_is_taken() -> None:
    with answering([0, SUMMARY], [0, SUMMARY], [0, SUMMARY], [0, ["10.0.0.9", 9091, "pi:0.25"]]) as port:
        assert here(port).check() == 2
        assert here(port).servers() == (2, 1)
        found = here(port).request(5.0)
    assert found == Server("10.0.0.9", 9091, "pi:0.25") and found.name == "10.0.0.9:9091"


def test_busy_and_missing_devices_are_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rpc_tracker, "GONE_SECONDS", -1.0)
    monkeypatch.setattr(rpc_tracker, "POLL_SECONDS", 0.01)
    with answering([0, SUMMARY]) as port, pytest.raises(NoDevice, match="no server with key 'phone'"):
        here(port, "phone").request(60.0)
    monkeypatch.setattr(rpc_tracker, "GONE_SECONDS", 60.0)
    with answering([0, SUMMARY]) as port, pytest.raises(NoDevice, match="none of the 1 servers"):
        here(port, "nuc").request(0.0)
