"""The OpenAPI document is right: whatever schemathesis makes of it, the server answers as documented, and never by 5xx.

`SLALOM_SCHEMA_CASES` is how many cases each operation gets.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis import Case

from slalom.frontends.server.app import make_app
from slalom.frontends.server.settings import ServeSpec
from tests.conftest import tiny_lm

CASES = int(os.environ.get("SLALOM_SCHEMA_CASES", "125"))
