"""What can keep Loopwarden from starting or running on this machine."""

from __future__ import annotations


class CannotStart(Exception):
    """The message names what is wrong and the remedy; it is shown as it is."""


class ChildFailed(CannotStart):
    """A child died too often, or never became ready."""


class AlreadyRunning(CannotStart):
    """Another supervisor holds the data folder."""
