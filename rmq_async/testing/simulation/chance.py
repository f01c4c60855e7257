"""Random draws with a result that is equal to the last bit on every system."""

from __future__ import annotations

from random import Random


def exponential(chance: Random, mean: float) -> float:
    """Draw from an exponential distribution, after von Neumann.

    Comparisons, one addition and one multiplication are exact or rounded in one way everywhere; ``Random.expovariate`` takes a
    logarithm, whose last bit depends on the C library.
    """
    whole = 0
    while True:
        first = last = chance.random()
        odd = True
        while (number := chance.random()) < last:  # the length of a falling row is odd with a probability of exp(-first)
            last = number
            odd = not odd
        if odd:
            return mean * (whole + first)
        whole += 1
