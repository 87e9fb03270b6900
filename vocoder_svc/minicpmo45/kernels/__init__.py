"""What a block of the flow does between its matrix products, in Triton: on a GPU, or slowly in Triton's interpreter, to prove it."""
