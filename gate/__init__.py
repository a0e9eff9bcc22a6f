"""WHAT an upgrade changed: two environments, one verdict, the culprit."""
