"""Reports of the kernel about threads that end."""

from __future__ import annotations

import errno
import os
import socket
import struct

from .kernel import read_text

__all__ = ["ExitListener"]


class ExitListener:
    """Delay and CPU time of every thread of this node that ends: taskstats over netlink (linux/taskstats.h).

    Raises OSError where the kernel does not permit it: it needs CAP_NET_ADMIN.
    """

    # Offsets of struct taskstats; checked against its figures of this process.
    _PID, _PARENT, _DELAY, _CPU, _PEAK = 128, 132, 24, 64, 200

    def __init__(self) -> None:
        self.complete = True
        self._ends: list[
            tuple[int, int, int, int, int]
        ] = []  # pid, parent, delay, CPU time (ns), peak memory (KiB)
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 16)
        try:
            self._socket.bind((0, 0))
            self._socket.settimeout(2)
            # SO_RCVBUFFORCE: 8 MiB hold some 10,000 ends.
            self._socket.setsockopt(socket.SOL_SOCKET, 33, 8 << 20)
            answer = self._ask(16, 3, self._attribute(2, b"TASKSTATS\0"))
            self._family = struct.unpack("H", self._attributes(answer)[1])[0]
            found = self._parse(self._ask(self._family, 1, self._attribute(1, struct.pack("I", os.getpid()))))
            if [x[:2] for x in found] != [(os.getpid(), os.getppid())]:
                raise OSError(errno.EPROTO, "taskstats is laid out otherwise")
            mask = (read_text("/sys/devices/system/cpu/possible") or "0").strip().encode()
            self._ask(self._family, 1, self._attribute(3, mask + b"\0"))
            self._socket.setblocking(False)
        except (OSError, KeyError, struct.error, IndexError) as e:
            self._socket.close()
            raise OSError(errno.ENOTSUP, str(e)) from None

    @staticmethod
    def _attribute(kind: int, data: bytes) -> bytes:
        return struct.pack("HH", 4 + len(data), kind) + data + b"\0" * (-len(data) % 4)

    @staticmethod
    def _attributes(data: bytes) -> dict[int, bytes]:
        found, at = {}, 0
        while at + 4 <= len(data):
            length, kind = struct.unpack_from("HH", data, at)
            if length < 4:
                break
            found[kind & 0x3FFF] = data[at + 4 : at + length]
            at += (length + 3) & ~3
        return found

    def _ask(self, family: int, command: int, payload: bytes) -> bytes:
        body = struct.pack("BBxx", command, 1) + payload
        # REQUEST | ACK
        self._socket.send(struct.pack("IHHII", 16 + len(body), family, 5, 1, 0) + body)
        answer = b""
        while True:
            data = self._socket.recv(1 << 16)
            kind = struct.unpack_from("H", data, 4)[0]
            if kind == 2:  # NLMSG_ERROR, with 0 where there is none
                code = struct.unpack_from("i", data, 16)[0]
                if code:
                    raise OSError(-code, os.strerror(-code))
                return answer
            answer = data[20:]

    def _parse(self, data: bytes) -> list[tuple[int, int, int, int, int]]:
        per_thread = self._attributes(data).get(
            4
        )  # TASKSTATS_TYPE_AGGR_PID; 5, of the whole process, repeats them
        if per_thread is None:
            return []
        stats = self._attributes(per_thread)[3]
        delay, cpu, peak = (
            struct.unpack_from("Q", stats, at)[0] for at in (self._DELAY, self._CPU, self._PEAK)
        )
        return [(*struct.unpack_from("II", stats, self._PID), delay, cpu, peak)]

    def drain(self) -> None:
        """Reads the messages that have arrived."""
        while True:
            try:
                data = self._socket.recv(1 << 16)
            except BlockingIOError:
                return
            except OSError:  # ENOBUFS: some were lost
                self.complete = False
                continue
            at = 0
            while at + 16 <= len(data):
                length = struct.unpack_from("I", data, at)[0]
                if length < 20:
                    break
                try:
                    self._ends.extend(self._parse(data[at + 20 : at + length]))
                except (KeyError, struct.error):
                    self.complete = False
                at += (length + 3) & ~3

    def total(self, root: int, main: int, without: set[int]) -> tuple[int, int, int, int]:
        """(delay, CPU time, threads, peak memory) of the descendants of `root`, in ns, without those of the
        excluded processes; `main` must be among them.
        """
        self.drain()
        self._socket.close()
        members = {root}
        size = 0
        while len(members) != size:  # children may have ended before their parents
            size = len(members)
            members.update(x[0] for x in self._ends if x[1] in members and x[0] not in without)
        own = [x for x in self._ends if x[0] != root and x[0] in members]
        if main not in members:
            self.complete = False
        peak = max((x[4] for x in own), default=0) << 10
        return sum(x[2] for x in own), sum(x[3] for x in own), len(own), peak
