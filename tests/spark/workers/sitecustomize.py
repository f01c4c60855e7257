"""For Python workers of Spark, whose PYTHONPATH begins with this folder: pyspark comes from its package, not from an archive.

Spark puts the archive first. It holds the same sources without bytecode, which each worker compiled again in 0.6 s of a processor.
"""

import sys

sys.path[:] = [entry for entry in sys.path if not entry.endswith("pyspark.zip")]
