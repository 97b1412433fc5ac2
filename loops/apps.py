"""The Django app that stores tasks, runs, gates and events."""

from django.apps import AppConfig


class LoopsConfig(AppConfig):
    """Models and their only writers."""

    name = "loops"
