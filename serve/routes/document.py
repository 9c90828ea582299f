"""The API's document at `/docs`: a plain page of what `/openapi.json` says, without scripts."""

from collections.abc import Iterator
from html import escape
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from serve.routes.page import HEADERS

router = APIRouter(include_in_schema=False)

Schema = dict[str, Any]

_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}: API</title>
<link rel="icon" href="page/icon.svg">
<link rel="stylesheet" href="page/style.css">
<body>
<header><h1>{title}</h1><p class="what">{summary}</p></header>
<main>
<p><a href="openapi.json">openapi.json</a> has all of this for programs. Live transcription is the
WebSocket <code>/v1/live</code>. With keys, <code>Authorization: Bearer KEY</code> is required.</p>
{routes}
</main>
"""


@router.get("/docs")
async def document(request: Request) -> HTMLResponse:
    """Return the page."""
    api = request.app.openapi()
    routes = "\n".join(_routes(api))
    title, summary = (escape(api["info"][name]) for name in ("title", "summary"))
    return HTMLResponse(_PAGE.format(title=title, summary=summary, routes=routes), headers=HEADERS)


def _routes(api: Schema) -> Iterator[str]:
    for path, methods in api["paths"].items():
        for method, route in methods.items():
            yield f"<section><h2><code>{method.upper()} {escape(path)}</code></h2>"
            yield f"<p>{escape(route['summary'])}. {escape(route['description'])}</p><ul>"
            for body in route.get("requestBody", {}).get("content", {}).values():
                schema = body["schema"]
                yield from _fields(api["components"]["schemas"][schema["$ref"].split("/")[-1]])
            for status, answer in route["responses"].items():
                kinds = ", ".join(answer.get("content", {}))
                yield f"<li>{status}: {escape(answer['description'])} {escape(kinds)}</li>"
            yield "</ul></section>"


def _fields(schema: Schema) -> Iterator[str]:
    for name, field in schema["properties"].items():
        needed = "required" if name in schema["required"] else f"default {field.get('default')!r}"
        text = escape(f"{field.get('description', '')} ({needed})")
        yield f"<li><code>{escape(name)}</code> {text}</li>"
