"""The rule of every loop, as plain Python: no Django, no Redis, no clock of its own."""
