"""Helpers for tests of the speaking services."""
