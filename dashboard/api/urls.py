"""Addresses of the API."""

from django.urls import path

from dashboard.api import gate, graphs, tasks

urlpatterns = [
    path("tasks", tasks.Tasks.as_view(), name="api-tasks"),
    path("tasks/<str:key>", tasks.OneTask.as_view(), name="api-task"),
    path("runs/<int:pk>", tasks.OneRun.as_view(), name="api-run"),
    path("runs/<int:pk>/events", tasks.RunEvents.as_view(), name="api-run-events"),
    path("runs/<int:pk>/cancel", tasks.CancelRun.as_view(), name="api-run-cancel"),
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
