"""How often is too often: the thresholds of `loops.core.progress` as fields of a spec."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

MOST = 12

SameFailures = Annotated[
    int,
    Field(
        ge=0,
        le=MOST,
        title="Same failure in a row",
        description="It stops when the checks fail so often in the same way; 0 for never. Numbers,"
        " times and addresses in their output do not count.",
    ),
]
SameFindings = Annotated[
    int,
    Field(
        ge=0,
        le=MOST,
        title="Same finding in a row",
        description="It asks a person when so many reviews ask for the same; 0 for never.",
    ),
]
IdleAttempts = Annotated[
    int,
    Field(
        ge=0,
        le=MOST,
        title="Attempts without a change",
        description="It stops when so many attempts in a row change nothing; 0 for never.",
    ),
]
