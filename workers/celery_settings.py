"""Celery's settings: acknowledge early, keep nothing in memory, let the database do the rest."""

from django.conf import settings

from workers.redis_url import KEY_PREFIX, celery_url

broker_url = celery_url(settings.REDIS_URL)
broker_connection_retry_on_startup = True
# For ever: an outage of any length ends by itself.
broker_connection_max_retries = None
broker_pool_limit = 10
visibility_timeout = 600
broker_transport_options = {
    "visibility_timeout": visibility_timeout,
    "socket_timeout": 5,
    "socket_connect_timeout": 2,
    "socket_keepalive": True,
    "health_check_interval": 10,
    "global_keyprefix": KEY_PREFIX,
    "unacked_restore_interval": 10,
    "unacked_restore_throttle": 1,
}
result_backend = None
task_ignore_result = True
# The lease and the sweeper recover: a late acknowledgement would only be undone by the duplicate.
task_acks_late = False
task_reject_on_worker_lost = False
worker_prefetch_multiplier = 1
worker_disable_prefetch = True
worker_enable_remote_control = False
worker_send_task_events = False
worker_hijack_root_logger = False
worker_soft_shutdown_timeout = 10.0
task_serializer = "json"
accept_content = ["json"]
task_default_queue = "loop.default"
timezone = "UTC"
