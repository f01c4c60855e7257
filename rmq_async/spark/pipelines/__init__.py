"""Pipelines between topics and tables. Each module is a function for programs, and a command: ``rmq spark NAME``, or the module's
file given to ``spark-submit``.
"""
