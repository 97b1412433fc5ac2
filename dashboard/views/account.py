"""Logging in and out, and the password."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.contrib.auth import login, update_session_auth_hash
from django.contrib.auth.decorators import login_required
from django.contrib.auth.forms import AuthenticationForm, PasswordChangeForm, SetPasswordForm
from django.contrib.auth.models import User
from django.contrib.auth.views import LoginView
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from dashboard.accounts import Guesses, link_is_good, spend_link

BACKEND = "django.contrib.auth.backends.ModelBackend"


class Login(LoginView):
    """Name and password, at most ten tries in ten minutes for one name from one address."""

    template_name = "dashboard/login.html"
    redirect_authenticated_user = True

    def post(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        """Count the try before looking at the password."""
        address = request.META.get("REMOTE_ADDR", "")
        self.guesses = Guesses(request.POST.get("username", ""), address)
        if not self.guesses.admit():
            context = self.get_context_data(form=self.get_form_class()(request), throttled=True)
            return self.render_to_response(context, status=429, headers={"Retry-After": "600"})
        return super().post(request, *args, **kwargs)

    def form_valid(self, form: AuthenticationForm) -> HttpResponse:
        """The right password clears the count."""
        self.guesses.forget()
        return super().form_valid(form)


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def login_link(request: HttpRequest, token: str) -> HttpResponse:
    """A link shows a button: programs that look at links in messages do not spend it."""
    if request.method == "POST":
        user = spend_link(token)
        if user is not None:
            login(request, user, backend=BACKEND)
            return redirect("tasks")
    good = request.method != "POST" and link_is_good(token)
    return render(request, "dashboard/login_link.html", {"good": good}, status=200 if good else 410)


@login_required
@require_http_methods(["GET", "HEAD", "POST"])
def account(request: HttpRequest) -> HttpResponse:
    """Set or change the password."""
    user = request.user
    assert isinstance(user, User)  # noqa: S101 - login_required has seen to it
    kind = PasswordChangeForm if user.has_usable_password() else SetPasswordForm
    sent = request.method == "POST"
    form = kind(user, request.POST if sent else None)
    if sent and form.is_valid():
        update_session_auth_hash(request, form.save())
        messages.success(request, "The password is set. Other sessions are logged out.")
        return redirect("account")
    status = 400 if sent else 200
    context = {"section": "account", "form": form, "has_password": user.has_usable_password()}
    return render(request, "dashboard/account.html", context, status=status)
