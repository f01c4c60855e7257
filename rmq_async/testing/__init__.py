"""Help for tests of code that uses rmq_async; never loaded by ``import rmq_async``."""
