"""Routes of the page. Every route knows its user; the job's owner DAG decides what it returns or does (`access`)."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from html import escape
from importlib.resources import files
from typing import Annotated, Any
from urllib.parse import quote, urlencode

from airflow.api_fastapi.core_api.security import GetUserDep, get_user, requires_access_dag
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Request
from fastapi.responses import HTMLResponse, JSONResponse, RedirectResponse, Response

from airflow_tidegate.plugins.access import Owned, Right, may, name_of, readable, require_own_origin
from airflow_tidegate.plugins.actions import RIGHTS, PageAction, perform_action
from airflow_tidegate.plugins.job_cache import JobCache, JobState, connections, unreadable
from airflow_tidegate.plugins.job_documents import job_document, summary_document
from tidegate.errors import JobNotFoundError, OptionError, RecordError, StoreError, TidegateError

PAGE_SIZE = 50
"""Jobs in one answer of the list."""
MAX_BODY_BYTES = 16_384
CONTENT_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "SAMEORIGIN",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}

NO_SUCH_JOB = "the job does not exist, or you lack the right to see it"
CANNOT_BE_READ = (
    "the jobs of this connection cannot be read at present; users who may edit the connection see the reason"
)
router = APIRouter(dependencies=[Depends(get_user)])


def make_app(jobs: JobCache | None = None) -> FastAPI:
    """Create the application. Args: jobs: source of its data; None: the connections in Airflow's configuration."""
    app = FastAPI(title="tidegate", docs_url=None, redoc_url=None, openapi_url=None)
    app.state.jobs = jobs or JobCache()
    app.include_router(router)
    app.add_exception_handler(TidegateError, _problem)

    @app.middleware("http")
    async def secure(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
        response = await call_next(request)
        for name, value in HEADERS.items():
            response.headers.setdefault(name, value)
        return response

    return app


async def _problem(_: Request, error: Exception) -> JSONResponse:
    """Return an error as JSON with its texts, for the page to show."""
    assert isinstance(error, TidegateError)
    status = 409
    if isinstance(error, JobNotFoundError):
        status = 404
    elif isinstance(error, OptionError):
        status = 400
    elif isinstance(error, StoreError) and not isinstance(error, RecordError):
        status = 502
    document = {"what": error.what, "where": error.where, "cause": error.cause, "remedy": error.remedy}
    return JSONResponse({"error": document}, status)


def _jobs(request: Request) -> JobCache:
    jobs: JobCache = request.app.state.jobs
    return jobs


JobsDep = Annotated[JobCache, Depends(_jobs)]


async def _body(request: Request) -> dict[str, Any]:
    """Return the JSON object of a request. Runs after user and origin are checked."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise HTTPException(415, "the request must have the content type application/json")
    raw = bytearray()
    async for part in request.stream():  # a chunked request does not declare its length
        raw += part
        if len(raw) > MAX_BODY_BYTES:
            raise HTTPException(413, f"the request has more than {MAX_BODY_BYTES} bytes")
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict):
        raise HTTPException(400, "the body of the request must be a JSON object")
    return body


def _seen(
    conn_id: str, job_id: str, jobs: JobCache, request: Request, user: GetUserDep, *, fresh: bool = False
) -> JobState:
    """Return the job if the user may read it; else answer as if it did not exist.

    If it cannot be read, the reason, with paths and the store's error, is shown only to users who may edit the
    connection: without its records, the job's owner is unknown.
    """
    try:
        job_state = jobs.job_state(conn_id, job_id, fresh=fresh)
    except (JobNotFoundError, OptionError):
        raise HTTPException(404, NO_SUCH_JOB) from None
    except TidegateError:
        if may("read", Owned(conn_id, None), request, user):
            raise
        raise HTTPException(502, CANNOT_BE_READ) from None
    if not may("read", Owned(conn_id, job_state.spec.owner_dag), request, user):
        raise HTTPException(404, NO_SUCH_JOB)
    return job_state


# ---------------------------------------------------------------- pages


@cache
def _statics() -> dict[str, bytes]:
    """Return the page's files: name -> content."""
    return {file.name: file.read_bytes() for file in files("airflow_tidegate.plugins").joinpath("static").iterdir()}


def _page(request: Request, name: str, **facts: str) -> HTMLResponse:
    """Return one of the two pages; `facts` are attributes of its root element."""
    data = {"root": request.scope.get("root_path", "").rstrip("/"), **facts}
    attributes = " ".join(f'data-{key}="{escape(value, quote=True)}"' for key, value in data.items())
    text = _statics()["page.html"].decode()
    return HTMLResponse(
        text.replace("{{root}}", escape(data["root"], quote=True))
        .replace("{{page}}", name)
        .replace("{{facts}}", attributes)
    )


@router.get("/ui/jobs")
def list_page(request: Request) -> HTMLResponse:
    """Show the list of jobs."""
    return _page(request, "jobs")


@router.get("/ui/jobs/{conn_id}/{job_id}")
def job_page(conn_id: str, job_id: str, request: Request, user: GetUserDep, jobs: JobsDep) -> HTMLResponse:
    """Show one job."""
    _seen(conn_id, job_id, jobs, request, user)
    return _page(request, "job", conn=conn_id, job=job_id)


@router.get("/ui/go", dependencies=[Depends(requires_access_dag("GET"))])
def go(
    request: Request, user: GetUserDep, jobs: JobsDep, dag_id: str, run_id: str = "", task_id: str = ""
) -> RedirectResponse:
    """Redirect from a DAG, a run or a task to its job; to the list if there are several jobs or none."""
    found = [
        (owned, name, job_state)
        for owned, name, job_state in _readable_jobs(jobs, request, user)
        if _owns(dag_id, job_state)
    ]
    for asked in (f"airflow:{dag_id}/{run_id}/{task_id}", f"airflow:{dag_id}/{run_id}/") if run_id else ():
        closer = [one for one in found if any(_is_by(spec.submitted_by, asked) for spec in one[2].specs)]
        if closer:
            found = closer
            break
    base = f"{request.scope.get('root_path', '').rstrip('/')}/ui/jobs"
    if len(found) == 1:
        owned, name, _ = found[0]
        return RedirectResponse(f"{base}/{quote(owned.conn_id, safe='')}/{quote(name, safe='')}", 303)
    return RedirectResponse(f"{base}?{urlencode({'dag': dag_id})}", 303)


def _owns(dag_id: str, job_state: JobState) -> bool:
    return job_state.spec.owner_dag == dag_id


def _is_by(name: str, asked: str) -> bool:
    """Return whether a submitter is the task `asked`, or a task of the run `asked`."""
    return name.startswith(asked) if asked.endswith("/") else name == asked


@router.get("/static/{name}")
def static(name: str) -> Response:
    """Return scripts, styles and pictures."""
    content_type = next((CONTENT_TYPES[s] for s in CONTENT_TYPES if name.endswith(s)), None)
    content = _statics().get(name) if content_type is not None else None
    if content is None:
        raise HTTPException(404, "the page has no such file")
    return Response(content, media_type=content_type, headers={"Cache-Control": "private, no-cache"})


# ---------------------------------------------------------------- reading


def _readable_jobs(jobs: JobCache, request: Request, user: GetUserDep) -> list[tuple[Owned, str, JobState]]:
    """Return all readable jobs that the user may see."""
    job_states: list[tuple[Owned, str, JobState]] = []
    for conn_id in connections():
        with suppress(Exception):  # the list reports connections that cannot be read
            for job_id in jobs.ids(conn_id):
                with suppress(TidegateError):
                    job_state = jobs.job_state(conn_id, job_id)
                    job_states.append((Owned(conn_id, job_state.spec.owner_dag), job_id, job_state))
    seen = readable([owned for owned, _, _ in job_states], request, user)
    return [one for one in job_states if one[0] in seen]


@router.get("/api/jobs")
def list_jobs(request: Request, user: GetUserDep, jobs: JobsDep, after: str = "", dag: str = "") -> dict[str, Any]:
    """Return a page of the jobs that the user may see, by connection and id.

    Args:
        after: `next` of the previous answer.
        dag: only jobs of this owner.

    Jobs or roots that cannot be read are named to users who may edit the connection.
    """
    problems: list[dict[str, str]] = []
    keys: list[tuple[str, str]] = []
    for conn_id in sorted(connections()):
        try:
            keys += [(conn_id, job_id) for job_id in jobs.ids(conn_id)]
        except Exception as error:  # a missing connection raises Airflow's own errors
            problems.append({"conn_id": conn_id, "job_id": "", "problem": _words(error)})
    if after:
        conn_id, _, job_id = after.rpartition("/")
        keys = [key for key in keys if key > (conn_id, job_id)]
    documents: list[dict[str, Any]] = []
    last = ""
    now = datetime.now(UTC)
    while keys and len(documents) < PAGE_SIZE:
        some, keys = keys[:PAGE_SIZE], keys[PAGE_SIZE:]
        job_states: list[tuple[Owned, str, JobState]] = []
        for conn_id, job_id in some:
            try:
                job_state = jobs.job_state(conn_id, job_id)
            except TidegateError as error:
                problems.append({"conn_id": conn_id, "job_id": job_id, "problem": _words(error)})
                continue
            if not dag or job_state.spec.owner_dag == dag:
                job_states.append((Owned(conn_id, job_state.spec.owner_dag), job_id, job_state))
        seen = readable([owned for owned, _, _ in job_states], request, user)
        for owned, job_id, job_state in job_states:
            if owned not in seen:
                continue
            try:
                documents.append(summary_document(owned.conn_id, job_id, job_state, now))
            except Exception as error:  # invalid records of one job must not hide all others
                problems.append({"conn_id": owned.conn_id, "job_id": job_id, "problem": _words(error)})
        last = "/".join(some[-1])
    menders = {conn_id: may("read", Owned(conn_id, None), request, user) for conn_id in connections()}
    return {
        "jobs": documents,
        "problems": [problem for problem in problems if menders[problem["conn_id"]]],
        "unreadable": sum(not menders[problem["conn_id"]] for problem in problems),
        "next": last if keys else None,
        "connections": list(connections()),
    }


def _words(error: Exception) -> str:
    return unreadable(error) if isinstance(error, TidegateError) else f"{type(error).__name__}: {error}"


@router.get("/api/jobs/{conn_id}/{job_id}")
def read_job(conn_id: str, job_id: str, request: Request, user: GetUserDep, jobs: JobsDep) -> dict[str, Any]:
    """Return a job, and the actions that the user may perform."""
    job_state = _seen(conn_id, job_id, jobs, request, user)
    owned = Owned(conn_id, job_state.spec.owner_dag)
    rights: tuple[Right, ...] = ("operate", "control")
    return {
        **job_document(conn_id, job_state, datetime.now(UTC)),
        "may": {right: may(right, owned, request, user) for right in rights},
    }


@router.get("/api/jobs/{conn_id}/{job_id}/commands/{command_id}")
def read_answer(
    conn_id: str, job_id: str, command_id: str, request: Request, user: GetUserDep, jobs: JobsDep
) -> dict[str, Any]:
    """Return the state of a command: `{"answered": false}`, or the driver's answer."""
    job_state = _seen(conn_id, job_id, jobs, request, user)
    result = jobs.client(conn_id, job_id).result(command_id)
    if result is None:
        return {"answered": False, "is_terminal": job_state.view.is_terminal}
    answer = {"ok": result.ok, "code": result.code, "message": result.message, "data": dict(result.data)}
    return {"answered": True, **answer}


# ---------------------------------------------------------------- acting


@router.post("/api/jobs/{conn_id}/{job_id}/{verb}", dependencies=[Depends(require_own_origin)])
def act(
    conn_id: str,
    job_id: str,
    verb: str,
    body: Annotated[dict[str, Any], Depends(_body)],
    request: Request,
    user: GetUserDep,
    jobs: JobsDep,
) -> JSONResponse:
    """Perform a button's action. 202 with `{"command_id"}` or `{"done"}`; 403 if the user may only read."""
    if verb not in RIGHTS:
        raise HTTPException(404, f"the page has no action {verb!r}")
    job_state = _seen(conn_id, job_id, jobs, request, user, fresh=True)
    if not may(RIGHTS[verb], Owned(conn_id, job_state.spec.owner_dag), request, user):
        owner = f"DAG {job_state.spec.owner_dag}" if job_state.spec.owner_dag is not None else f"connection {conn_id}"
        raise HTTPException(
            403, f"you lack the right to {verb} the job: your rights on {owner}, which owns the job, do not allow it"
        )
    asked = PageAction.of(verb, body, name_of(user))
    return JSONResponse(perform_action(jobs.client(conn_id, job_id), jobs.root(conn_id), job_state, asked), 202)
