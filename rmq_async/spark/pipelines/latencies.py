"""Buckets of latencies: their number is bounded, and counts by bucket are merged by addition.

Latencies are rounded to microseconds. Below 128 each number of microseconds is a bucket; from 128 on there are 64 buckets for
each doubling, so that the upper bound of a bucket is less than 1.6 % above each of its values.
"""

from __future__ import annotations

from typing import Final

__all__ = ["HIGHEST", "bucket_of", "highest_in"]

_BITS: Final = 6
_PARTS: Final = 1 << _BITS
HIGHEST: Final = (1 << 40) - 1
"""Microseconds, 12.7 days; a longer latency counts as this."""


def bucket_of(seconds: float) -> int:
    """Returns the bucket of a latency; a negative one counts as zero."""
    micros = min(max(round(seconds * 1e6), 0), HIGHEST)
    doublings = micros.bit_length() - _BITS - 1
    return micros if doublings <= 0 else (doublings << _BITS) + (micros >> doublings)


def highest_in(bucket: int) -> float:
    """Returns the upper bound of a bucket, in seconds."""
    doublings = (bucket >> _BITS) - 1
    if doublings <= 0:
        return bucket / 1e6
    return (((bucket & _PARTS - 1) + _PARTS + 1 << doublings) - 1) / 1e6
