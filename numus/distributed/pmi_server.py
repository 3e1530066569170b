"""A server of PMI, version 1: `python pmi_server.py HOST PORT SIZE`.

It serves one job until its standard input is closed (the process that started it ends) and nobody
is connected any more: libraries still talk to it in their exit handlers. It imports nothing of
numus, so that it is there at once.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time

_MAX_NAME, _MAX_KEY, _MAX_VALUE = 256, 64, 1024  # characters, as MPICH's own launcher allows
_LAST_S = 60.0  # that ranks may take to end after the first one
# Of the table of keys. Libraries name their shared memory after it: it belongs to one job alone.
_NAME = f"kvs_{os.getpid()}_{time.time_ns()}_{socket.gethostname()}"


class PmiServer:
    """Serves one job of `size` processes until all have ended."""

    def __init__(self, host: str, port: int, size: int) -> None:
        self._size = size
        self._values: dict[str, str] = {}
        self._changed = threading.Condition()
        self._waiting = self._barriers = self._connected = 0
        self._socket = socket.create_server((host, port), backlog=size + 16)
        self.port: int = self._socket.getsockname()[1]
        threading.Thread(target=self._accept, name="numus-pmi", daemon=True).start()

    def wait_for_the_last(self) -> None:
        """Wait until nobody is connected; not for ever: a rank may have died before a barrier."""
        with self._changed:
            self._changed.wait_for(lambda: not self._connected, _LAST_S)

    def _accept(self) -> None:
        while True:
            connection, _ = self._socket.accept()
            with self._changed:
                self._connected += 1
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rw", newline="\n") as lines:
            try:
                for line in lines:
                    lines.write(self._answer(line.rstrip("\n")))
                    lines.flush()
            except OSError:  # the process has ended: its peers find out by themselves
                pass
        with self._changed:
            self._connected -= 1
            self._changed.notify_all()

    def _answer(self, line: str) -> str:
        head, _, value = line.partition(" value=")  # a value may have spaces and signs of equality
        given = dict(word.split("=", 1) for word in head.split() if "=" in word)
        command = given.get("cmd", "")
        if command == "initack":
            sizes = f"cmd=set size={self._size}\ncmd=set rank={given['pmiid']}\ncmd=set debug=0\n"
            return f"cmd=initack rc=0\n{sizes}"
        if command == "init":
            return "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\n"
        if command == "get_maxes":
            sizes = f"kvsname_max={_MAX_NAME} keylen_max={_MAX_KEY} vallen_max={_MAX_VALUE}"
            return f"cmd=maxes rc=0 {sizes}\n"
        if command == "get_appnum":
            return "cmd=appnum rc=0 appnum=0\n"
        if command == "get_my_kvsname":
            return f"cmd=my_kvsname rc=0 kvsname={_NAME}\n"
        if command == "get_universe_size":
            return f"cmd=universe_size rc=0 size={self._size}\n"
        if command == "put":
            with self._changed:
                self._values[given["key"]] = value
            return "cmd=put_result rc=0\n"
        if command == "get":
            with self._changed:
                found = self._values.get(given["key"])
            if found is None:
                return "cmd=get_result rc=-1 msg=key_not_found value=unknown\n"
            return f"cmd=get_result rc=0 value={found}\n"
        if command == "barrier_in":
            self._barrier()
            return "cmd=barrier_out rc=0\n"
        if command == "finalize":
            return "cmd=finalize_ack rc=0\n"
        return f"cmd={command} rc=-1 msg=unknown_command\n"

    def _barrier(self) -> None:
        with self._changed:
            number = self._barriers
            self._waiting += 1
            if self._waiting == self._size:
                self._waiting = 0
                self._barriers += 1
                self._changed.notify_all()
            while self._barriers == number:
                self._changed.wait()


def main(host: str, port: str, size: str) -> None:
    """Serve; says the port as soon as it listens."""
    try:
        server = PmiServer(host, int(port), int(size))
    except OSError as error:
        print(f"error {error}", flush=True)
        return
    print(f"port {server.port}", flush=True)
    sys.stdin.buffer.read()
    server.wait_for_the_last()
    os._exit(0)  # whatever its threads wait for


if __name__ == "__main__":
    main(*sys.argv[1:])
