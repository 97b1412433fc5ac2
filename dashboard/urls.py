"""Addresses."""

from django.contrib.auth.views import LogoutView
from django.urls import include, path
from django.views.generic import RedirectView

from dashboard.views import (
    account,
    gate,
    graphs,
    health,
    new_graph,
    new_task,
    operations,
    run,
    tasks,
)

urlpatterns = [
    path("", RedirectView.as_view(pattern_name="tasks"), name="home"),
    path("tasks/", tasks.tasks, name="tasks"),
    path("tasks/new/", new_task.new_task, name="new-task"),
    path("tasks/new/<slug:name>/", new_task.new_task, name="new-task-of"),
    path("tasks/<int:pk>/", run.task, name="task"),
    path("tasks/<int:pk>/cancel/", run.cancel, name="cancel"),
    path("tasks/<int:pk>/artifacts/<str:digest>/", run.artifact, name="artifact"),
    path("graphs/", graphs.graphs, name="graphs"),
    path("graphs/new/", new_graph.new_graph, name="new-graph"),
    path("graphs/<int:pk>/", graphs.graph, name="graph"),
    path("graphs/<int:pk>/grants/", graphs.grant, name="grant-graph"),
    path("graphs/<int:pk>/cancel/", graphs.cancel, name="cancel-graph"),
    path("gate/", gate.gate, name="gate"),
    path("gate/<int:pk>/", gate.gate_item, name="gate-item"),
    path("operations/", operations.operations, name="operations"),
    path("operations/hold/", operations.hold, name="hold"),
    path("operations/drain/", operations.drain, name="drain"),
    path("nav/", gate.nav_figures, name="nav"),
    path("account/", account.account, name="account"),
    path("login/", account.Login.as_view(), name="login"),
    path("login/link/<str:token>/", account.login_link, name="login-link"),
    path("logout/", LogoutView.as_view(), name="logout"),
    path("healthz", health.healthz, name="healthz"),
    path("readyz", health.readyz, name="readyz"),
    path("api/v1/", include("dashboard.api.urls")),
]

handler400 = "dashboard.views.errors.bad_request"
handler403 = "dashboard.views.errors.forbidden"
handler404 = "dashboard.views.errors.not_found"
handler500 = "dashboard.views.errors.broken"
