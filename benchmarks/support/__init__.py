"""Parts of the benchmarks, and programs that these start; none is started by hand."""
