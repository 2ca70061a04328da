"""An endpoint of FastAPI that publishes.

One producer lives as long as the application. The response is sent when the message is stored, so a client that gets
201 can rely on it. If the brokers cannot store it now, the client gets 503 and may repeat the request: the order's id
is the key of the message, by which consumers recognise a repetition (see the idempotent consumer).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException, Request
from pydantic import BaseModel

import evenq
import evenq.aio


class Order(BaseModel):
    id: str
    amount: int


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with evenq.aio.Producer() as app.state.producer:
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/orders", status_code=201)
async def place_order(order: Order, request: Request) -> dict[str, str]:
    message = evenq.Message(topic="web-orders", body=order.model_dump_json().encode(), keys=(order.id,))
    try:
        stored = await request.app.state.producer.send(message)
    except evenq.Error as error:
        raise HTTPException(503 if error.retryable else 500, str(error)) from error
    return {"message_id": stored.message_id}
