"""Faults put into Spark queries, and what became of the messages; shared by the suite and by benchmarks/spark_faults.py.

A run has a directory: ``run.json`` (what it is), ``history.jsonl`` (what was produced, what each start began with, what was put in
and where), the checkpoint, and the Parquet files where that is the sink. The driver of a run only writes there; ``checker`` only
reads there, and counts.
"""
