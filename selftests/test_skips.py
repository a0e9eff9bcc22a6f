"""A self-test that this machine cannot run is counted in the summary, with the reason."""

from __future__ import annotations

import pytest


def test_what_is_skipped_is_counted_by_its_reason(pytester: pytest.Pytester) -> None:
    """Also where the session is quiet; what passed is no line."""
    pytester.makeconftest("from selftests.conftest import pytest_terminal_summary  # noqa: F401")
    pytester.makepyfile("""
        import pytest

        @pytest.mark.parametrize("n", range(2))
        def test_one(n):
            pytest.skip("no network namespaces here")

        def test_two():
            pass
    """)
    result = pytester.runpytest_inprocess("-qq", "test_what_is_skipped_is_counted_by_its_reason.py")
    told = [line for line in result.outlines if line.startswith("not checked here")]
    assert told == ["not checked here: 2 self-tests: no network namespaces here"]
