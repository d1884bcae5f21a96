"""TVM's RPC tracker, asked with time limits: which servers it has, and one of them to measure on.

In: a tracker's address and the key of a kind of device, from the user. Out: how many servers have that key, and the
address of one that is free. TVM's own client waits for ever, for a tracker that is not there as for a device.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tvm.rpc import base

from tvm_rnn.errors import ConfigError, message

ANSWER_SECONDS = 5.0  # a tracker does nothing but look things up
GONE_SECONDS = 5.0  # without any server of a key, before that is final: one that starts again needs some
POLL_SECONDS = 0.1
START_TRACKER = "python -m tvm.exec.rpc_tracker --host 0.0.0.0 --port 9190"
START_SERVER = "on each device: python -m tvm.exec.rpc_server --tracker {} --key {}"


class NoDevice(Exception):
    """There is no device to be had; the text says why."""


@dataclass(frozen=True)
class Server:
    """One that the tracker has given away to us. match: what the server wants to hear."""

    host: str
    port: int
    match: str

    @property
    def name(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True)
class Tracker:
    """Where a tracker is, and the key of the devices that it is asked for. ConfigError: it does not answer."""

    host: str
    port: int
    key: str

    @property
    def name(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def how_to_serve(self) -> str:
        return START_SERVER.format(self.name, self.key)

    def servers(self) -> tuple[int, int]:
        """How many servers have the key, and how many of them are free."""
        with self._connected() as connection:
            return self._count(self._summary(connection))

    def check(self) -> int:
        """How many servers have the key. Raises ConfigError where none has."""
        with self._connected() as connection:
            summary = self._summary(connection)
        total, _ = self._count(summary)
        if not total:
            keys = sorted({str(server.get("key", "")).partition(":")[2] for server in summary["server_info"]})
            got = f"{self.key!r}; the tracker at {self.name} has {', '.join(keys) if keys else 'no servers at all'}"
            raise ConfigError(message("no server has this device key", got=got, do=self.how_to_serve))
        return total

    def request(self, seconds: float) -> Server:
        """A free server, within so many seconds. Raises NoDevice."""
        started = seen = time.monotonic()
        while True:
            try:
                total, free = self.servers()
                if free and (found := self._take()) is not None:
                    return found
            except ConfigError as reason:
                raise NoDevice(" ".join(str(reason).split())) from None
            now = time.monotonic()
            seen = now if total else seen
            if now - seen > GONE_SECONDS:
                raise NoDevice(f"the tracker at {self.name} has no server with key {self.key!r}")
            if now - started > seconds:
                raise NoDevice(f"none of the {total} servers with key {self.key!r} was free for {seconds:g} s")
            time.sleep(POLL_SECONDS)

    def _take(self) -> Server | None:
        """None: somebody else was quicker. Whoever leaves is passed over when a server is free again."""
        with self._connected() as connection:
            base.sendjson(connection, [base.TrackerCode.REQUEST, self.key, "", 1])
            try:
                code, found = base.recvjson(connection)
            except TimeoutError:
                return None
        return Server(str(found[0]), int(found[1]), str(found[2])) if code == base.TrackerCode.SUCCESS else None

    def _summary(self, connection: socket.socket) -> dict[str, Any]:
        base.sendjson(connection, [base.TrackerCode.SUMMARY])
        _, summary = base.recvjson(connection)
        return dict(summary)

    def _count(self, summary: dict[str, Any]) -> tuple[int, int]:
        total = sum(server.get("key") == f"server:{self.key}" for server in summary["server_info"])
        return total, int(summary["queue_info"].get(self.key, {"free": 0})["free"])

    @contextlib.contextmanager
    def _connected(self) -> Iterator[socket.socket]:
        try:
            with socket.create_connection((self.host, self.port), ANSWER_SECONDS) as connection:
                connection.sendall(struct.pack("<i", base.RPC_TRACKER_MAGIC))
                if base.recvall(connection, 4) != struct.pack("<i", base.RPC_TRACKER_MAGIC):
                    raise OSError("what answers is no tracker of TVM")
                yield connection
        except (OSError, ValueError, TypeError, KeyError, struct.error) as reason:
            got = "no answer" if isinstance(reason, TimeoutError) else str(reason)
            what = message("the RPC tracker does not answer", where=self.name, got=got, do=f"start it: {START_TRACKER}")
            raise ConfigError(what) from None


def tracker(address: object, key: object) -> Tracker | None:
    """What --rpc-tracker and --device-key say; None where neither is given. Raises ConfigError for one without the
    other and for what is no HOST:PORT. Asks nobody yet."""
    if address is None and key is None:
        return None
    if address is None or key is None:
        got = "a device key alone" if address is None else "a tracker's address alone"
        do = "give both: --rpc-tracker HOST:PORT --device-key KEY"
        raise ConfigError(message("tune: an RPC tracker needs an address and a device key", got=got, do=do))
    host, colon, port = str(address).rpartition(":")
    if not (isinstance(address, str) and host and colon and port.isdecimal() and 0 < int(port) < 65536):
        expected = "HOST:PORT, such as 10.0.0.5:9190"
        raise ConfigError(message("tune: the RPC tracker's address", got=repr(address), expected=expected))
    if not isinstance(key, str) or not key.strip() or key.split() != [key]:
        raise ConfigError(message("tune: the device key", got=repr(key), expected="a word, as servers were given it"))
    return Tracker(host.removeprefix("[").removesuffix("]"), int(port), key)
