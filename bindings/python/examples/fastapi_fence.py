"""A FastAPI service behind a fence, and a client of it that holds the lock."""

from __future__ import annotations

import os
from typing import Any

import lockkeeper.aio
from fastapi import FastAPI, Request
from lockkeeper.fences import http

stock = {"screws": 100}

app = FastAPI()
app.add_middleware(http.ASGIMiddleware, fence=http.Fence(os.environ["FENCE"]))


@app.get("/stock/{name}")
async def read(name: str) -> int:
    return stock[name]


@app.put("/stock/{name}")
async def write(name: str, pieces: int, request: Request) -> dict[str, Any]:
    stock[name] = pieces
    fenced: http.Fenced = request.scope[http.KEY]
    return {"pieces": pieces, "token": fenced.token}


async def take_one(shop: Any, name: str) -> int:
    """``shop`` is a client of the service, such as ``httpx.AsyncClient``."""
    locks = (await lockkeeper.aio.connect(os.environ["LOCKKEEPER_URL"])).fenced()
    async with locks.mutex(f"stock/{name}") as guard:
        headers = {"Fencing-Token": str(guard.token)}
        pieces = int((await shop.get(f"/stock/{name}", headers=headers)).json()) - 1
        answer = await shop.put(f"/stock/{name}", params={"pieces": pieces}, headers=headers)
        answer.raise_for_status()  # 412: this holder is stale, and has taken nothing
        return pieces
