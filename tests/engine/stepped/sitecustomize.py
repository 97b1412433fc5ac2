"""On PYTHONPATH of a process: its time of day is `CLOCK_STEP` seconds off, its monotonic clock not.

The C library's clock stays right, and with it SQLite's and PostgreSQL's.
"""

import datetime as dt
import os

import time_machine

step = dt.timedelta(seconds=float(os.environ["CLOCK_STEP"]))
time_machine.travel(dt.datetime.now(dt.UTC) + step, tick=True).start()
