"""Addresses of the API."""

from django.urls import path

from dashboard.api import gate, graphs, holds, tasks

urlpatterns = [
    path("tasks", tasks.Tasks.as_view(), name="api-tasks"),
    path("tasks/<str:key>", tasks.OneTask.as_view(), name="api-task"),
    path("runs/<int:pk>", tasks.OneRun.as_view(), name="api-run"),
    path("runs/<int:pk>/events", tasks.RunEvents.as_view(), name="api-run-events"),
    path("runs/<int:pk>/cancel", tasks.CancelRun.as_view(), name="api-run-cancel"),
    path("holds", holds.Holds.as_view(), name="api-holds"),
    path("runs/<int:pk>/pause", holds.HoldTarget.as_view(scope="run")),
    path("runs/<int:pk>/resume", holds.HoldTarget.as_view(scope="run", lifts=True)),
    path("project/pause", holds.HoldTarget.as_view(scope="project")),
    path("project/resume", holds.HoldTarget.as_view(scope="project", lifts=True)),
    path("pause", holds.HoldTarget.as_view(scope="all")),
    path("resume", holds.HoldTarget.as_view(scope="all", lifts=True)),
    path("stop", holds.HoldTarget.as_view(scope="switch")),
    path("release", holds.HoldTarget.as_view(scope="switch", lifts=True)),
    path("graphs", graphs.Graphs.as_view(), name="api-graphs"),
    path("graphs/<str:key>", graphs.OneGraph.as_view(), name="api-graph"),
    path("graphs/<str:key>/grants", graphs.GraphGrants.as_view(), name="api-graph-grants"),
    path("graphs/<str:key>/cancel", graphs.CancelGraph.as_view(), name="api-graph-cancel"),
    path("escalations", gate.Escalations.as_view(), name="api-escalations"),
    path("escalations/<int:pk>", gate.OneEscalation.as_view(), name="api-escalation"),
    path(
        "escalations/<int:pk>/decision",
        gate.EscalationDecision.as_view(),
        name="api-escalation-decision",
    ),
]
