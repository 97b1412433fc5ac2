"""All that a process of the product imports; only the server that forks them imports this."""

import gc

import django

django.setup()

import anthropic.types  # noqa: E402
import genai_prices.data  # noqa: E402, F401
import httpx2  # noqa: E402, F401
import kombu.transport.redis  # noqa: E402, F401
from django.conf import settings  # noqa: E402

import workers.agents.anthropic  # noqa: E402
import workers.iteration  # noqa: E402
import workers.sweeper  # noqa: E402
import workers.tasks  # noqa: E402, F401
from workers import sandbox  # noqa: E402
from workers.app import app  # noqa: E402
from workers.tools import registry  # noqa: E402

# What is otherwise built by the first call of each process.
app.finalize()
assert app.backend is not None
assert app.amqp.queues
registry()
for name in dir(anthropic.types):
    if name.startswith(("Message", "Raw")) or name.endswith(("Block", "Delta", "Usage")):
        build = getattr(getattr(anthropic.types, name), "model_rebuild", None)
        if build is not None:
            build()
sandbox.detect(settings.LOOPWARDEN_SANDBOX)
# Collections in the children would touch, and so copy, every page of all this.
gc.collect()
gc.freeze()
