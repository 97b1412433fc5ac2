"""The product's settings with a data folder of the test session's own."""

import os
import tempfile

os.environ["LOOPWARDEN_DATA"] = tempfile.mkdtemp(prefix="lw-test-")
os.environ["LOOPWARDEN_REPO_ROOTS"] = "/"

from dashboard.settings import *  # noqa: F403

PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]  # slow hashes slow tests
