"""What torch engines share: paged caches, ragged batches, a decoder-only forward over them, reproducible draws."""
