"""Triton kernels of what is decided behind a forward, each beside the thin function that launches it.

A *line* is a row of logits: first those of all deciding rows, then those of the drafts of the first rows. What is decided behind a draft is
read only if the row drew `<|speak|>`, and then that entered its history as one token more: so both lines can be judged at once.
"""
