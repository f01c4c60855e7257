"""Checks arguments of the admin's methods."""

from __future__ import annotations

from collections.abc import Sequence

from rmq_protocol.errors import shown
from rmq_protocol.validation import plain

from ..config import check_encodable
from ..errors import ConfigError

__all__ = ["check_number", "check_text", "patterns_of", "texts_of"]


def check_number(name: str, number: int, limit: int) -> None:
    if isinstance(number, bool) or not isinstance(number, int) or not 0 < number <= limit:
        raise ConfigError(f"{name} must be a whole number from 1 to {limit}, not {shown(number)}")


def check_text(name: str, text: str, *, longest: int | None = None) -> str:
    """Return a text as a plain str.

    Raises:
        ConfigError: For another value, and for a text that is blank, has more than ``longest`` characters or has no UTF-8 form.
    """
    if not isinstance(text, str) or not text.strip() or (longest is not None and len(text) > longest):
        limit = "" if longest is None else f" of 1 to {longest} characters"
        raise ConfigError(f"{name} must be a text that is not blank{limit}, not {shown(text)}")
    check_encodable(name, text)
    return plain(text)


def patterns_of(name: str, given: str | Sequence[str]) -> tuple[str, ...]:
    return texts_of(given, f'{name} must be a pattern such as "orders*", or a sequence of them', least=1)


def texts_of(given: object, rule: str, *, least: int = 0) -> tuple[str, ...]:
    """Return one text or several as a tuple.

    Raises:
        ConfigError: With ``rule`` for fewer than ``least``, and for other values.
    """
    texts = (given,) if isinstance(given, str) else tuple(given) if isinstance(given, Sequence) else ("",)
    if len(texts) < least or not all(isinstance(text, str) and text for text in texts):
        raise ConfigError(f"{rule}, not {shown(given)}")
    return tuple(map(plain, texts))
