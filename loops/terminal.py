"""What the commands of `manage.py` print: whatever text is in it, a terminal only shows it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TextIO, cast

from django.core.management.base import BaseCommand, OutputWrapper

from loops.core.text import for_terminal


class Shown(OutputWrapper):
    """A stream on which nothing but our own colours steers the terminal."""

    def write(  # type: ignore[override]  # the class of Django overrides it in the same way
        self,
        msg: str = "",
        style_func: Callable[[str], str] | None = None,
        ending: str | None = None,
    ) -> None:
        """Print it with escapes in the place of what a terminal would obey."""
        super().write(for_terminal(str(msg)), style_func, ending)


class TerminalCommand(BaseCommand):
    """The base of our commands. Titles, answers and errors are other people's words."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.stdout = _shown(self.stdout, self.stdout.style_func)
        self.stderr = _shown(self.stderr, self.stderr.style_func)

    def execute(self, *args: Any, **options: Any) -> str | None:
        """Run it on the streams of the caller, if it gives some."""
        if stream := options.pop("stdout", None):
            self.stdout = _shown(stream, None)
        if stream := options.pop("stderr", None):
            self.stderr = _shown(stream, None)
        return super().execute(*args, **options)


def _shown(stream: OutputWrapper | TextIO, style: Callable[[str], str] | None) -> Shown:
    out = Shown(cast(TextIO, stream._out if isinstance(stream, OutputWrapper) else stream))
    out.style_func = style
    return out
