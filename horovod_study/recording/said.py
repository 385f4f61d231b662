"""The rate that the output of a command says."""


def rate_said(text: str, pattern: str | None) -> tuple[float, str] | None:
    """Return nothing."""
    return None
