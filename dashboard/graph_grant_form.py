"""The form that raises what the tasks of a graph share."""

from __future__ import annotations

from typing import Any

from django import forms
from django.http import QueryDict

from dashboard.forms import MICRO, MOST
from loops.figures import meters
from loops.models import Graph
from loops.store.graph_grants import problems_of
from loops.store.submit import Problem


class GrantForm(forms.Form):
    """One field for each limit that the graph has, filled with the limit as it stands."""

    use_required_attribute = False

    def __init__(self, graph: Graph, data: QueryDict | None = None) -> None:
        super().__init__(data, prefix="grant", label_suffix="")
        self.graph = graph
        for meter in meters(graph):
            if meter.cap is not None:
                self.fields[meter.axis] = _field(meter.axis, meter.title, meter.cap)

    def caps(self) -> dict[str, int]:
        """The limits from now on, in stored units; a field left empty stays as it is."""
        caps = {name: value for name, value in self.cleaned_data.items() if value is not None}
        if "cost_microusd" in caps:
            caps["cost_microusd"] = int(caps["cost_microusd"] * MICRO)
        return caps

    def clean(self) -> dict[str, Any]:
        """The limits can be raised to this."""
        if not self.errors:
            self.add_problems(list(problems_of(self.graph, self.caps())))
        return self.cleaned_data

    def add_problems(self, problems: list[Problem]) -> None:
        """Put each problem beside its field."""
        for problem in problems:
            name = problem.field.removeprefix("limits.")
            self.add_error(name if name in self.fields else None, problem.message)


def _field(axis: str, title: str, cap: int) -> forms.Field:
    if axis == "cost_microusd":
        return forms.DecimalField(
            label="Cost, US dollars",
            initial=cap / MICRO,
            required=False,
            max_value=MOST,
            decimal_places=6,
        )
    return forms.IntegerField(label=title, initial=cap, required=False)
