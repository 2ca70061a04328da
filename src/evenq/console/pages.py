"""The frame of every page: its user, its forms, the format of values, and the page of an error.

A handler takes a `Visit` and returns a response. It raises the errors of the cluster; `route` turns them into a page
with the reason and the next step, and a missing sign-in into the sign-in page.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from starlette.datastructures import FormData
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from evenq.client.async_admin import Admin
from evenq.console.figures import Figures
from evenq.console.sessions import Principal, UserSessions
from evenq.console.settings import ConsoleSettings
from evenq.errors import (
    BadRequest,
    ConnectionFailed,
    Error,
    Forbidden,
    NotFound,
    NotImplementedYet,
    PreconditionFailed,
    RequestTimeout,
    TooManyRequests,
    Unauthorized,
)
from evenq.runtime.clock import Clock
from evenq.runtime.printable import printable

FIELDS_MAX = 200
SESSION_ID = re.compile(r"[A-Za-z0-9_-]{43}")
SPARK_POINTS = 40
ROWS = 50
"""Rows of one page of a list."""


@dataclass(frozen=True, slots=True)
class Console:
    """Parts that all pages share."""

    settings: ConsoleSettings
    sessions: UserSessions
    templates: Environment
    clock: Clock

    @classmethod
    def of(cls, settings: ConsoleSettings, sessions: UserSessions, clock: Clock) -> Console:
        def ago(ms: int | None) -> str:
            """Time, ms since the epoch -> `12 s ago`."""
            return "unknown" if not ms else f"{span(max(0, clock.now_ms() - ms))} ago"

        templates = Environment(
            loader=FileSystemLoader(Path(__file__).parent / "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            finalize=visible,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        templates.filters |= {
            "number": number,
            "bytes": byte_count,
            "moment": moment,
            "ago": ago,
            "span": span,
            "rate": rate,
            "spark": spark,
        }
        # A block that is refreshed is rendered alone, without the imports at the top of its template.
        templates.globals["m"] = templates.get_template("macros.html").module
        return cls(settings, sessions, templates, clock)

    @property
    def secure(self) -> bool:
        """True: browsers reach the console by HTTPS only."""
        return self.settings.https or self.settings.certificate is not None

    @property
    def cookie(self) -> str:
        """Name of the cookie: those of one host are shared by its ports, and two consoles must not share theirs. With
        HTTPS it has a prefix, with which browsers accept it from this host only, and not from plain HTTP.
        """
        prefix = "" if not self.secure else "__Secure-" if self.settings.prefix else "__Host-"
        return f"{prefix}evenq-console-{self.settings.port}"

    def session_id(self, request: Request) -> str:
        """Returns the id in the cookie; empty: there is none that this program could have made."""
        session_id = request.cookies.get(self.cookie, "")
        return session_id if SESSION_ID.fullmatch(session_id) else ""

    def href(self, *path: object, **query: object) -> str:
        """Returns the address of a page: parts of the path and values are quoted; empty values are left out."""
        text = "/".join((self.settings.prefix, *(quote(str(part), safe="") for part in path))) or "/"
        kept = {name: value for name, value in query.items() if value not in ("", None) and value is not False}
        return f"{text}?{urlencode(kept)}" if kept else text


@dataclass(slots=True, kw_only=True)
class Visit:
    """One request by one principal."""

    console: Console
    request: Request
    session_id: str
    principal: Principal
    form: FormData
    """Empty unless the request changes something."""

    @property
    def admin(self) -> Admin:
        return self.principal.admin

    @property
    def figures(self) -> Figures:
        return self.principal.figures

    @property
    def address(self) -> str:
        """Path of the request, quoted as it was received: a name may contain `%`, as in `%RETRY%billing`."""
        raw: bytes = self.request.scope.get("raw_path") or quote(self.request.scope["path"]).encode()
        return quote(raw.partition(b"?")[0].decode("latin-1"), safe="/%:@!$&'()*+,;=~-._")

    @property
    def is_fragment(self) -> bool:
        """True: a part of a page that is shown is refreshed."""
        return "hx-request" in self.request.headers

    def path(self, name: str) -> str:
        return str(self.request.path_params[name])

    def query(self, name: str, default: str = "") -> str:
        return self.request.query_params.get(name, default)

    def number(self, name: str, *, default: int = 0, least: int = 0, most: int = 1 << 53) -> int:
        """Returns a number of the form or the query. Raises BadRequest, which names the range."""
        text = str(self.form.get(name, "") or self.query(name)).strip()
        if not text:
            return default
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if not least <= value <= most:
            raise BadRequest(f"{name} is {text[:50]!r}; give a whole number from {least} to {most}")
        return value

    def text(self, name: str, default: str = "") -> str:
        """Returns a text of the form."""
        value = self.form.get(name, default)
        return value if isinstance(value, str) else default

    def page(self, template: str, *, status: int = 200, **values: object) -> Response:
        """Returns a page. `template` has the block `live`, which alone is sent to refresh it."""
        console = self.console
        shown = console.templates.get_template(template)
        context = shown.new_context(
            {
                "href": console.href,
                "user": self.principal.user,
                "allow_changes": console.settings.allow_changes,
                "token": console.sessions.token(self.session_id),
                "here": self.address.removeprefix(console.settings.prefix),
                "again": self.address + (f"?{self.request.url.query}" if self.request.url.query else ""),
                "static": f"{console.settings.prefix}/static",
                "done": self._done(),
                "history": self.figures.history,
                "rate_of": self.figures.rate,
                **values,
            }
        )
        if self.is_fragment and "live" in shown.blocks:
            return HTMLResponse("".join(shown.blocks["live"](context)), status)
        return HTMLResponse("".join(shown.root_render_func(context)), status)

    def after(self, done: str, *path: object, **query: object) -> Response:
        """Returns to a page after a change; `done` says what was changed."""
        proof = self.console.sessions.token(_sentence(self.session_id, done))
        return RedirectResponse(self.console.href(*path, done=done, proof=proof, **query), 303)

    def _done(self) -> str:
        """Returns the sentence of `after`; empty if somebody else wrote it into a link to this page."""
        done = self.query("done")
        fits = self.console.sessions.token_fits(_sentence(self.session_id, done), self.query("proof"))
        return done if done and fits else ""


def _sentence(session_id: str, done: str) -> str:
    return f"{session_id} {done}"


Handler = Callable[[Visit], Awaitable[Response]]


def route(
    console: Console, path: str, handler: Handler, *, changes: bool = False, posts: bool = False, signed: bool = True
) -> Route:
    """Returns the route of a page. `changes`: a form that changes the cluster; `posts`: one that does not, such as a
    sign-in. `signed` False: no user is needed.
    """

    async def answer(request: Request) -> Response:
        session_id = console.session_id(request)
        visit = await _visit(console, request)
        try:
            if changes and not console.settings.allow_changes:
                raise _FormRefused("this console is read-only; start it with --allow-changes to change the cluster")
            if changes or posts:
                _check_charset(request)
                if signed and not visit.principal.user:
                    await _refuse_strangers(visit)
                visit.form = await request.form(max_files=2, max_fields=FIELDS_MAX, max_part_size=4 << 20)
                if not console.sessions.token_fits(visit.session_id, visit.text("token")):
                    raise _FormRefused("the form is not from this session; reload the page and send it again")
            response = await handler(visit)
        except Unauthorized as error:
            if signed and not visit.principal.user:
                target = console.href("login", next=visit.address if request.method == "GET" else "")
                response = _redirected(visit, target)
            else:
                response = _failure(visit, error, 401)
        except ClientDisconnect:
            response = Response(status_code=400)
        except Error as error:
            response = _failure(visit, error, _status(error))
        finally:
            await visit.form.close()
        if visit.session_id != session_id:
            set_cookie(console, response, visit.session_id)
        return response

    return Route(console.settings.prefix + path, answer, methods=["POST"] if changes or posts else ["GET"])


async def _refuse_strangers(visit: Visit) -> None:
    """Raises Unauthorized if the cluster has users. The form is not read before: parsing takes seconds."""
    with suppress(NotImplementedYet):  # brokers before 0.2
        await visit.admin.describe_caller()


async def _visit(console: Console, request: Request) -> Visit:
    session_id = console.session_id(request)
    session = await console.sessions.find(session_id) if session_id else None
    return Visit(
        console=console,
        request=request,
        session_id=session_id or console.sessions.new_id(),
        principal=session.principal if session is not None else console.sessions.without_keys(),
        form=FormData(),
    )


PROBLEMS = {
    404: ("Page not found", "The console has no page at this address. The menu above leads to all pages."),
    405: ("Method not allowed", "This address does not take such a request. The menu above leads to all pages."),
}
"""Headings and texts for requests that no route takes."""


async def no_page(console: Console, request: Request, error: HTTPException) -> Response:
    """Returns the page for an address without a page; its status is in `PROBLEMS`."""
    visit = await _visit(console, request)
    heading, text = PROBLEMS[error.status_code]
    response = visit.page(
        "error.html",
        status=error.status_code,
        error=text,
        code=error.status_code,
        repeatable=False,
        title=heading,
    )
    response.headers.update(error.headers or {})
    return response


def set_cookie(console: Console, response: Response, session_id: str) -> None:
    response.set_cookie(
        console.cookie,
        session_id,
        path=console.settings.prefix or "/",
        secure=console.secure,
        httponly=True,
        samesite="lax",  # with strict, a link from another site signs the user out: its response has a new cookie
    )


class _FormRefused(Forbidden):
    """The console refuses a form, whatever the user's grants are."""


def _check_charset(request: Request) -> None:
    """Browsers name no charset. The parser applies any that Python has, also one that makes text that is not UTF-8."""
    content_type = request.headers.get("content-type", "").lower()
    if "charset" in content_type.replace("charset=utf-8", "", 1):
        raise BadRequest("the form names a charset; send it in UTF-8")


def _redirected(visit: Visit, target: str) -> Response:
    if visit.is_fragment:  # a redirect would put the whole sign-in page into a part of this page
        return Response(status_code=204, headers={"hx-redirect": target})
    return RedirectResponse(target, 303)


def _failure(visit: Visit, error: Error, status: int) -> Response:
    return visit.page(
        "error.html",
        status=status,
        error=error,
        code=status,
        repeatable=visit.request.method == "GET",
        title="Refused" if isinstance(error, _FormRefused) else _heading(error),
    )


def _heading(error: Error) -> str:
    """Returns the name of an error as words: `TopicNotFound` -> `Topic not found`."""
    return " ".join(re.findall(r"[A-Z][^A-Z]*", type(error).__name__)).capitalize()


def _status(error: Error) -> int:
    match error:
        case NotFound():
            return 404
        case Forbidden():
            return 403
        case BadRequest():
            return 400
        case PreconditionFailed():
            return 409
        case TooManyRequests():
            return 429
        case NotImplementedYet():
            return 501
        case ConnectionFailed() | RequestTimeout():
            return 503
    return 502


def visible(value: object) -> object:
    r"""Returns what a page shows of a value, also of an error: control characters and direction marks become escapes
    such as `\x1b`.

    A field of a form keeps them, as they are sent back: it is written `{{ value | e }}`.
    """
    if isinstance(value, Exception):
        value = str(value)
    return printable(value, keep="\n\t\u202f") if type(value) is str else value


def spark(points: Sequence[tuple[int, float | None]]) -> Markup:
    """Returns a line of the values over their times; a gap where they are unknown."""
    known = [value for _, value in points if value is not None]
    if len(known) < 2:
        return Markup("")
    low, height = min(known), max(known) - min(known) or 1
    begin_ms, length_ms = points[0][0], points[-1][0] - points[0][0] or 1
    line, pen = "", "M"
    for at_ms, value in points[:: len(points) // SPARK_POINTS + 1]:
        if value is None:
            pen = "M"
            continue
        line += f"{pen}{(at_ms - begin_ms) / length_ms * 120:.0f} {23 - (value - low) / height * 22:.1f}"
        pen = "L"
    text = f"from {number(known[0])} to {number(known[-1])} in {span(length_ms)}"
    return Markup('<svg class="spark" viewBox="0 0 120 24" role="img" aria-label="{}"><path d="{}"/></svg>').format(
        text, line
    )


def number(value: float | None) -> str:
    """1234567 -> `1 234 567` with narrow spaces; None -> `unknown`."""
    return "unknown" if value is None else f"{value:,.0f}".replace(",", "\u202f")


def rate(value: float | None) -> str:
    """Events per second -> `12/s`, with a digit after the point below ten."""
    if value is None:
        return "unknown"
    return f"{value:.1f}/s" if 0 < value < 10 else f"{number(value)}/s"


def byte_count(value: int | None) -> str:
    if value is None:
        return "unknown"
    size, units = float(value), ("bytes", "KiB", "MiB", "GiB", "TiB")
    for unit in units:
        if size < 1024 or unit == units[-1]:
            return f"{size:.0f} {unit}" if unit == "bytes" or size >= 100 else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError


def span(ms: float | None) -> str:
    """Milliseconds -> `850 ms`, `12 s`, `3 min`, `5 h`, `2 d`."""
    if ms is None:
        return "unknown"
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000)):
        if ms >= 2 * size or (unit == "s" and ms >= size):
            return f"{ms / size:.0f} {unit}"
    return f"{ms:.0f} ms"


def moment(ms: int | None) -> Markup:
    """Time, ms since the epoch -> an element that the browser shows in its time zone; 0 and None -> `unknown`."""
    if not ms:
        return Markup("unknown")
    try:
        text = datetime.fromtimestamp(ms / 1_000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (OverflowError, ValueError, OSError):
        return Markup("{} ms").format(ms)
    return Markup('<time datetime="{}">{}</time>').format(text, text)
