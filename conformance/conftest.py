"""Before anything runs on a GPU platform: has its noise been measured? Without that no tolerance is known there."""

from pathlib import Path

import pytest

from conformance.tolerances import EvidenceError, read_evidence
from fixtures.plugin import STATE


@pytest.hookimpl(trylast=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """One line with the command that measures it, and exit status 4; not where nothing is compared."""
    state = session.config.stash.get(STATE, None)
    if state is None or state.worker or not state.orders.live or state.orders.rehearse:
        return
    if state.orders.platform == "cpu" or session.config.option.find_max_batch:
        return
    try:
        read_evidence(state.orders.platform)
    except EvidenceError as error:
        raise pytest.UsageError(str(error)) from error


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Stand-ins are many, and only for ``--rehearse``."""
    if collection_path.name == "test_stand_ins.py" and not config.option.rehearse:
        return True
    return None
