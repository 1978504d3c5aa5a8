"""Which methods a path takes. A path may be that of several routes, of which each takes some."""

from __future__ import annotations

from starlette.routing import Match, Router
from starlette.types import Scope

_METHODS = ("DELETE", "GET", "HEAD", "POST")


def takes_method(router: Router, scope: Scope) -> bool:
    """True if a route has the scope's path and method."""
    return any(route.matches(scope)[0] is Match.FULL for route in router.routes)


def allowed_methods(router: Router, scope: Scope) -> list[str]:
    """Every method that the scope's path takes."""
    return [method for method in _METHODS if takes_method(router, {**scope, "method": method})]
