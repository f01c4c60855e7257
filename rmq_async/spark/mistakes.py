"""Collects the mistakes of one call, so that its error names all of them and not only the first one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from ..errors import ConfigError

T = TypeVar("T")


class SeveralMistakesError(ConfigError):
    """More than one mistake.

    Args:
        texts: The texts of all mistakes.
    """

    def __init__(self, message: str = "", *, texts: Sequence[str] = (), **details: Any) -> None:
        super().__init__(message, **details)
        self.texts = tuple(texts)


class Mistakes:
    """The mistakes found so far, in the order in which they were found."""

    def __init__(self) -> None:
        self._found: dict[str, ConfigError] = {}

    def add(self, text: str) -> None:
        self._found.setdefault(text, ConfigError(text))

    def result(self, call: Callable[[], T], otherwise: T) -> T:
        """Return the result of ``call``; if it raises ConfigError, keep its mistakes and return ``otherwise``."""
        try:
            return call()
        except SeveralMistakesError as error:
            for text in error.texts:
                self.add(text)
        except ConfigError as error:
            self._found.setdefault(str(error), error)
        return otherwise

    def check(self) -> None:
        """Raise the only mistake as it is, and several as one error that numbers them. Do nothing without one."""
        if len(self._found) == 1:
            raise next(iter(self._found.values()))
        if self._found:
            listed = "; ".join(f"({number}) {text}" for number, text in enumerate(self._found, 1))
            raise SeveralMistakesError(f"{len(self._found)} mistakes: {listed}", texts=tuple(self._found))
