"""Django's settings: all from the environment (deploy/env.example lists every name), read strictly."""

import secrets
from pathlib import Path

from django.core.exceptions import ImproperlyConfigured

from controller import environment as env

BASE_DIR = env.ROOT
RELUME_HOME = env.path("RELUME_HOME", BASE_DIR / "var")
RELUME_POLICY = env.text("RELUME_POLICY", "")
RELUME_MODE = env.choice("RELUME_MODE", ("", "observe", "approve", "act"), "")
RELUME_KNOWLEDGE = env.text("RELUME_KNOWLEDGE", "")
RELUME_CLUSTER = env.text("RELUME_CLUSTER", "")
SLURM_CONF = env.text("SLURM_CONF", "")
SLURM_ADAPTER = env.text("SLURM_ADAPTER", "auto")
if SLURM_ADAPTER not in ("auto", "cli", "pyslurm") and not SLURM_ADAPTER.startswith("fake:"):
    raise ImproperlyConfigured(f"SLURM_ADAPTER={SLURM_ADAPTER!r}: expected auto, cli, pyslurm or fake:PATH")
# Whom Slurm sees when jobs or nodes are changed, where that is not the worker's own user.
SLURM_JOB_RUN_AS = env.run_as("SLURM_JOB_RUN_AS")
SLURM_NODE_RUN_AS = env.run_as("SLURM_NODE_RUN_AS")


def _secret_key() -> str:
    """From `RELUME_SECRET_KEY_FILE`; without one a key for this process alone (tests, one-off commands)."""
    name = env.text("RELUME_SECRET_KEY_FILE", "")
    if not name:
        return secrets.token_urlsafe(50)
    try:
        key = Path(name).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ImproperlyConfigured(f"RELUME_SECRET_KEY_FILE={name}: {error}") from None
    if len(key) < 32:
        raise ImproperlyConfigured(f"RELUME_SECRET_KEY_FILE={name}: shorter than 32 characters; delete it and run `up`")
    return key


SECRET_KEY = _secret_key()
DEBUG = False
ALLOWED_HOSTS = [host for host in env.text("RELUME_ALLOWED_HOSTS", "localhost,127.0.0.1,[::1]").split(",") if host]

INSTALLED_APPS = [
    "controller.apps.ControllerConfig",
    "dashboard.apps.DashboardConfig",
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "dashboard.policy_headers.ContentSecurityPolicyMiddleware",
]
ROOT_URLCONF = "controller.urls"
WSGI_APPLICATION = "controller.wsgi.application"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]

DATABASES = {"default": env.database(env.text("DATABASE_URL", f"sqlite:///{RELUME_HOME / 'relume.sqlite3'}"))}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
PASSWORD_HASHERS = [
    "django.contrib.auth.hashers.Argon2PasswordHasher",
    "django.contrib.auth.hashers.PBKDF2PasswordHasher",
]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 12}},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]
LOGIN_URL = "login"
LOGIN_REDIRECT_URL = "/"
LOGOUT_REDIRECT_URL = "login"

LANGUAGE_CODE = "en-us"
TIME_ZONE = "UTC"
USE_TZ = True
STATIC_URL = "static/"
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"},
}
WHITENOISE_USE_FINDERS = True  # served from where the apps keep them: nothing to collect
DATA_UPLOAD_MAX_MEMORY_SIZE = 1 << 20

SECURE_CONTENT_TYPE_NOSNIFF = True
SECURE_REFERRER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Lax"
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = env.flag("RELUME_HTTPS", False)

# Celery is only a way to be woken: no result is kept, a tick that comes late is worthless and expires.
CELERY_BROKER_URL = env.broker("REDIS_URL", "redis://127.0.0.1:6379/0")
CELERY_TASK_IGNORE_RESULT = True
CELERY_TASK_SERIALIZER = "json"
CELERY_ACCEPT_CONTENT = ["json"]
CELERY_TASK_ACKS_LATE = False
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_TASK_TIME_LIMIT = 120
CELERY_TASK_SOFT_TIME_LIMIT = 90
CELERY_BROKER_TRANSPORT_OPTIONS = {"visibility_timeout": 600, "socket_timeout": 10, "socket_connect_timeout": 5}
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_TIMEZONE = "UTC"
# In the settings, kept in memory: no shelve file that a crash could spoil. Two beats are harmless.
CELERY_BEAT_SCHEDULER = "celery.beat:Scheduler"
CELERY_BEAT_MAX_LOOP_INTERVAL = 1
CELERY_BEAT_SCHEDULE = {
    "sweep": {"task": "controller.sweep", "schedule": 1.0, "options": {"expires": 2.0}},
    "run-actions": {"task": "controller.run_actions", "schedule": 1.0, "options": {"expires": 2.0}},
    "check-rights": {"task": "controller.check_rights", "schedule": 10.0, "options": {"expires": 10.0}},
}
CELERY_TASK_ROUTES = {
    "controller.sweep": {"queue": "decide"},
    "controller.run_actions": {"queue": "actions"},
    "controller.check_rights": {"queue": "actions"},
}
