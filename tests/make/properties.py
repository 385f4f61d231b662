"""How often properties are tried."""

from hypothesis import settings


def examples(count: int) -> int:
    """Return how many examples a property is tried with: `count`, times what the profile asks for (conftest.py)."""
    return count * settings.default.max_examples // 100
