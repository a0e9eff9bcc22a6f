"""Several nodes on one machine: network namespaces, each with its own address, on one switch. Test equipment; Linux.

A holder process owns them, in a mount and network namespace of its own, as root or in a user namespace: nothing is to
be seen of them outside, and they are gone when it is.

    python -m selftests.nodes hold 2                    the holder; says "ready", ends when its standard input does
    python -m selftests.nodes start PID 2 torchrun ...  torchrun on each node, as ssh in a loop would; as a --launcher
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WAYS = (("unshare", "-m", "-n"), ("unshare", "-U", "-r", "-m", "-n"))
"""How to get a network of one's own: as root, or as anybody in a user namespace."""
GRACE_SECONDS = 3.0


def address(number: int) -> str:
    """Of node ``number``, in the network of the nodes."""
    return f"10.77.0.{number + 1}"


@dataclass(frozen=True, kw_only=True)
class Nodes:
    """Namespaces that a holder holds."""

    pid: int
    count: int

    def words(self, *command: str) -> str:
        """A ``--launcher`` that starts ``command`` on each node."""
        return " ".join(["{python} -m selftests.nodes start", str(self.pid), str(self.count), *command])

    def cut(self, number: int) -> None:
        """Pull the cable of a node out of the switch."""
        self._switch(number, "down")

    def plug_in(self, number: int) -> None:
        """Put it back."""
        self._switch(number, "up")

    def _switch(self, number: int, state: str) -> None:
        subprocess.run([*enter(self.pid), "ip", "link", "set", f"port{number}", state], check=True)


def enter(pid: int) -> list[str]:
    """The words before a command that is to run in the holder's namespaces."""
    same_user = Path(f"/proc/{pid}/ns/user").readlink() == Path("/proc/self/ns/user").readlink()
    return ["nsenter", "-t", str(pid), *([] if same_user else ["-U", "--preserve-credentials"]), "-m", "-n"]


@contextlib.contextmanager
def opened(count: int, ways: Sequence[Sequence[str]] = WAYS) -> Iterator[Nodes | str]:
    """``count`` nodes, or in one line why there can be none here."""
    problems = []
    for way in ways:
        try:
            holder = subprocess.Popen(
                [*way, sys.executable, "-m", "selftests.nodes", "hold", str(count)], cwd=ROOT, text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            )
        except OSError as error:
            problems.append(f"{way[0]}: {error.strerror}")
            continue
        with holder:
            if holder.stdout is not None and holder.stdout.readline() == "ready\n":
                yield Nodes(pid=holder.pid, count=count)
                return
            _, said = holder.communicate()
            problems.append(f"{' '.join(way)}: {(said.strip().splitlines() or ['no answer'])[-1]}")
    yield f"no network namespaces here ({'; '.join(problems)})"


def hold(count: int) -> None:
    """Make the nodes, say so, and wait until nobody needs them."""
    _run("mount", "-t", "tmpfs", "tmpfs", "/run")  # ip keeps its namespaces there, and another user's is closed to us
    _run("ip", "link", "add", "switch", "type", "bridge")
    _run("ip", "link", "set", "switch", "up")
    for number in range(count):
        name = f"node{number}"
        _run("ip", "netns", "add", name)
        _run("ip", "link", "add", f"port{number}", "type", "veth", "peer", "name", "eth0", "netns", name)
        _run("ip", "link", "set", f"port{number}", "master", "switch", "up")
        _run("ip", "-n", name, "address", "add", f"{address(number)}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            _run("ip", "-n", name, "link", "set", device, "up")
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.read()


def _run(*words: str) -> None:
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)


def start(pid: int, count: int, words: Sequence[str]) -> int:
    """Run ``torchrun ...`` on each node; if one fails the others are asked to end, as srun would."""
    command, *rest = words
    running = [
        subprocess.Popen([
            *enter(pid), "ip", "netns", "exec", f"node{number}",
            "env", "-C", str(ROOT), "GLOO_SOCKET_IFNAME=eth0", command,  # who enters a mount namespace is at its root
            "--local-addr", address(number), "--rdzv-conf", f"is_host={'true' if number == 0 else 'false'}", *rest,
        ])
        for number in range(count)
    ]
    signal.signal(signal.SIGTERM, lambda number, frame: _terminate(running))
    while all(one.poll() in (None, 0) for one in running) and any(one.poll() is None for one in running):
        time.sleep(0.1)
    give_up = time.monotonic() + GRACE_SECONDS
    while any(one.poll() is None for one in running) and time.monotonic() < give_up:
        time.sleep(0.1)
    _terminate(running)
    return max(abs(one.wait()) for one in running)


def _terminate(running: Sequence[subprocess.Popen[bytes]]) -> None:
    for one in running:
        one.terminate()


if __name__ == "__main__":
    what, *told = sys.argv[1:]
    if what == "hold":
        hold(int(told[0]))
    else:
        sys.exit(start(int(told[0]), int(told[1]), told[2:]))
