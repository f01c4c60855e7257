"""Latencies as counts by bucket: bounded however many there are, and two of them are merged by adding.

A bucket is a number of microseconds up to 128, from there on 64 buckets for each doubling, so that its upper bound, which is what
a percentile is reported as, is less than 1.6 % above what was measured.
"""

from __future__ import annotations

from typing import Final

__all__ = ["HIGHEST", "bucket_of", "highest_in"]

_BITS: Final = 6
_PARTS: Final = 1 << _BITS
HIGHEST: Final = (1 << 40) - 1
"""Microseconds, twelve days; what is longer counts as this."""


def bucket_of(seconds: float) -> int:
    """The bucket of a latency; a negative one counts as zero."""
    micros = min(max(round(seconds * 1e6), 0), HIGHEST)
    doublings = micros.bit_length() - _BITS - 1
    return micros if doublings <= 0 else (doublings << _BITS) + (micros >> doublings)


def highest_in(bucket: int) -> float:
    """The longest time in it, in seconds."""
    doublings = (bucket >> _BITS) - 1
    if doublings <= 0:
        return bucket / 1e6
    return (((bucket & _PARTS - 1) + _PARTS + 1 << doublings) - 1) / 1e6
