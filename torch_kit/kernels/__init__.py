"""Triton kernels, each beside the thin function that launches it. They need Triton, and CUDA or Triton's interpreter."""
