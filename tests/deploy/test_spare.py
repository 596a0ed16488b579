"""Flower's middleware answers the same in the lean form, and is passed by where it has no part."""

import asyncio

import httpx
import pytest
from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse, Response
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware

from fedsys.deploy.spare import spared

PATHS = ["/v1/fleet/x", "/v1/runtime/x", "/v1/control/x", "/health"]


async def translate(request, call_next):
    """Outermost, as Flower's is: an error becomes an answer."""
    try:
        return await call_next(request)
    except HTTPException as error:
        return JSONResponse({"code": error.status_code}, 418)


class Body(BaseHTTPMiddleware):
    """Reads the body, leaves it in the state, and changes the answer, as Flower's translation."""

    async def dispatch(self, request, call_next):
        request.state.parsed = await request.body()
        response = await call_next(request)
        if response.status_code != 200:
            return response
        changed = Response(b"translated " + request.state.answer, media_type="text/x")
        changed.headers.raw.extend(h for h in response.headers.raw if h[0] == b"x-inside")
        return changed


class NodeAuthMiddleware(BaseHTTPMiddleware):
    """Named as Flower's; it would refuse whoever it is asked for."""

    async def dispatch(self, request, call_next):
        if request.url.path.startswith("/v1/fleet/") and request.state.parsed == b"stranger":
            raise HTTPException(401)
        return await call_next(request)


class ControlLicenseMiddleware(BaseHTTPMiddleware):
    """The same."""

    async def dispatch(self, request, call_next):
        if request.url.path.startswith("/v1/control/") and request.state.parsed == b"stranger":
            raise HTTPException(402)
        return await call_next(request)


EVERY = [
    Middleware(BaseHTTPMiddleware, dispatch=translate),
    Middleware(Body),
    Middleware(ControlLicenseMiddleware),
    Middleware(NodeAuthMiddleware),
]


def app_with(middleware):
    app = FastAPI(middleware=middleware)

    async def answer(request: Request):
        if await request.body() == b"wrong":
            raise HTTPException(400)
        request.state.answer = request.state.parsed
        return Response(headers={"x-inside": "1"})

    for path in PATHS:
        app.post(path)(answer)
    return httpx.ASGITransport(app)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("body", [b"friend", b"stranger", b"wrong", b"", bytes(1 << 18)])
def test_the_answer_is_the_same(path, body):
    async def answer(middleware):
        async with httpx.AsyncClient(transport=app_with(middleware), base_url="http://x") as client:
            found = await client.post(path, content=body)
        return found.status_code, found.content, sorted(found.headers.multi_items())

    assert asyncio.run(answer(spared(EVERY))) == asyncio.run(answer(EVERY))
