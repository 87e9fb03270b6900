"""Measurements against named floors and peers; never part of the tests."""
