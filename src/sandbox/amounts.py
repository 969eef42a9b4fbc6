"""Amounts as people write them on a command line."""

from __future__ import annotations

__all__ = ["read_bytes", "read_count", "read_seconds"]

UNITS = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3}


def read_seconds(text: str) -> float | None:
    """A number of seconds; `none` is no limit."""
    if text.lower() == "none":
        return None
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a number of seconds, or none") from None


def read_count(text: str) -> int | None:
    """A whole number such as 5000000 or 5e6; `none` is no limit."""
    if text.lower() == "none":
        return None
    try:
        return int(float(text)) if "e" in text.lower() else int(text)
    except (ValueError, OverflowError):
        raise ValueError(f"{text!r} is not a whole number such as 5e6, or none") from None


def read_bytes(text: str) -> int:
    """A number of bytes, such as 4096, 256M or 1.5GiB."""
    amount = text.upper().removesuffix("B").removesuffix("I")
    unit = amount[-1:] if amount[-1:] in UNITS else ""
    try:
        return int(float(amount.removesuffix(unit)) * UNITS[unit])
    except (ValueError, OverflowError):
        raise ValueError(f"{text!r} is not a size, such as 256M or 1G") from None
