"""The median of a benchmark's samples, and how sure it is."""

import math


def estimate(samples):
    """Median, and the ends of its 95 % interval by order statistics."""
    samples = sorted(samples)
    n = len(samples)
    half = 0.98 * math.sqrt(n)

    def at(rank):
        return samples[int(min(max(rank, 0), n - 1))]

    return at(n / 2), at(math.floor(n / 2 - half)), at(math.ceil(n / 2 + half))
