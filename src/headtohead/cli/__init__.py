"""The command line `h2h`. A file a family of verbs; importing one adds its verbs, in the order of `h2h --help`."""

from . import experiments, models, parts  # noqa: F401
from . import attention as _attention  # noqa: F401
from . import decode as _decode  # noqa: F401
from . import design as _design  # noqa: F401
from . import generate as _generate  # noqa: F401
from .app import app, main

__all__ = ["app", "main"]
