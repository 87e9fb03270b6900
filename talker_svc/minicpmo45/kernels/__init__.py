"""Triton kernels of the talker alone."""
