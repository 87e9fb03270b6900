"""Tests of the checkpoint: what it holds, how it is read, written, fetched, and how much memory it wants."""
