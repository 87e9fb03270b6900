"""Parts of `benchmarks.native_unit`: the engines of MiniCPM-o 4.5 alone, in a row, and as a deployment."""
