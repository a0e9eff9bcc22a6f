"""Registers the suite's pytest plugin; pytester is for its self-tests."""

pytest_plugins = ["fixtures.plugin", "pytester"]
