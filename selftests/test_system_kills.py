"""Where the kernel's memory killer keeps its count, in both versions of control groups and without them."""

from __future__ import annotations

from pathlib import Path

import pytest

from fixtures import system_kills

V2 = "low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\noom_group_kill 0\n"
V1 = "oom_kill_disable 0\nunder_oom 0\noom_kill 5\n"
VMSTAT = "nr_free_pages 1\noom_kill 9\n"


def machine(root: Path, files: dict[str, str]) -> Path:
    """A root folder with these files."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("files", "due"),
    [
        ({"proc/self/cgroup": "0::/job/one\n", "sys/fs/cgroup/job/one/memory.events": V2, "proc/vmstat": VMSTAT}, 2),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.events": V2}, 2),
        ({"proc/self/cgroup": "1:cpu:/\n4:memory:/job\n0::/\n", "sys/fs/cgroup/memory/job/memory.oom_control": V1}, 5),
        ({"proc/self/cgroup": "4:memory:/unseen\n", "sys/fs/cgroup/memory/memory.oom_control": V1}, 5),
        ({"proc/self/cgroup": "0::/\n", "proc/vmstat": VMSTAT}, 9),
        ({"proc/vmstat": VMSTAT}, 9),
        ({"proc/vmstat": "nr_free_pages 1\n"}, None),
        ({"proc/vmstat": "oom_kill many\n"}, None),
        ({}, None),
    ],
    ids=["v2", "v2, container", "v1", "v1, container", "no own count", "no groups", "old kernel", "garbage", "nothing"],
)
def test_the_count_is_the_groups_own_or_the_machines(files: dict[str, str], due: int | None, tmp_path: Path) -> None:
    """A count that cannot be read is none; it is never taken for zero."""
    assert system_kills.count(machine(tmp_path, files)) == due
