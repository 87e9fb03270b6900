"""Engines whose models run inside this process, on the CPU."""
