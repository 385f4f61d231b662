"""How often properties are tried."""

from hypothesis import settings


def examples(count: int) -> int:
    """Return how many of `count` examples a property is tried with in this profile (conftest.py), at least five."""
    return max(min(count, 5), count * settings.default.max_examples // 100)
