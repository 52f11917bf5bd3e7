"""The hub's own origin: search, information, trees, and where a file's bytes are.

Statuses, headers and bodies are those of huggingface.co as huggingface_hub 2.4.0 reads them (its `hf_api.py`,
`file_download.py` and `utils/_http.py`).
"""

import json
import re
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

from tests.registry.hub.catalog import POINTER_BYTES, Content, Model
from tests.registry.hub.serving import Handler

MODEL = re.compile(r"/api/models/(?P<id>[^/]+/[^/]+)(?:/revision/(?P<revision>[^/]+))?")
TREE = re.compile(r"/api/models/(?P<id>[^/]+/[^/]+)/tree/(?P<revision>[^/]+)(?:/(?P<folder>.+))?")
RESOLVE = re.compile(r"/(?P<id>[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<file>.+)")
CACHED = re.compile(r"/api/resolve-cache/models/(?P<id>[^/]+/[^/]+)/(?P<revision>[^/]+)/(?P<file>.+)")
SORTS = {"downloads": "downloads", "likes": "likes", "lastModified": "modified", "trendingScore": "trending"}


class Refused(Exception):
    """The request isn't answered with what it asks for."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message


def route(handler: Handler) -> None:
    """Answer one request to the hub."""
    split = urlsplit(handler.path)
    query = dict(parse_qs(split.query).items())
    try:
        _check_token(handler)
        if split.path == "/api/models":
            _search(handler, query)
        elif found := TREE.fullmatch(split.path):
            _tree(handler, found, query)
        elif found := MODEL.fullmatch(split.path):
            _information(handler, found, query)
        elif found := CACHED.fullmatch(split.path) or RESOLVE.fullmatch(split.path):
            _resolve(handler, found, cached=found.re is CACHED)
        else:
            raise Refused(404, "", "Sorry, we can't find the page you are looking for.")
    except Refused as refused:
        _refuse(handler, refused)


def _refuse(handler: Handler, refused: Refused) -> None:
    headers = {"X-Error-Message": refused.message}
    if refused.code:
        headers["X-Error-Code"] = refused.code
    if refused.status == 401:
        headers["WWW-Authenticate"] = 'Bearer realm="Authentication required", charset="UTF-8"'
    handler.answer(refused.status, json.dumps({"error": refused.message}).encode(), **headers)


def _token(handler: Handler) -> str | None:
    said = handler.headers.get("Authorization")
    return said.removeprefix("Bearer ") if said else None


def _check_token(handler: Handler) -> None:
    token = _token(handler)
    if token is not None and token not in handler.server.hub.tokens:
        raise Refused(401, "", "Invalid credentials in Authorization header")


def _model(handler: Handler, id: str) -> Model:
    hub, token = handler.server.hub, _token(handler)
    model = hub.catalog.models.get(id)
    if model is None or (model.private and token not in model.allowed):
        if token is None:
            # The hub doesn't tell strangers which names are taken.
            raise Refused(401, "", "Invalid username or password.")
        raise Refused(404, "RepoNotFound", "Repository not found")
    if model.disabled:
        raise Refused(403, "", "Access to this resource is disabled.")
    return model


def _files(model: Model, revision: str) -> tuple[str, dict[str, Content]]:
    commit = model.commit_of(unquote(revision))
    if commit is None:
        raise Refused(404, "RevisionNotFound", f"Invalid rev id: {unquote(revision)}")
    return commit, model.revisions[commit]


def _search(handler: Handler, query: dict[str, list[str]]) -> None:
    hub, token = handler.server.hub, _token(handler)
    wanted, author = query.get("search", [""])[0].lower(), query.get("author", [""])[0]
    filters = set(query.get("filter", []))
    models = [
        model
        for model in hub.catalog.models.values()
        if wanted in model.id.lower()
        and (not author or model.id.split("/")[0] == author)
        and filters <= set(model.tags)
        and (not model.private or token in model.allowed)
    ]
    attribute = SORTS[query.get("sort", ["trendingScore"])[0]]
    models.sort(key=lambda model: getattr(model, attribute), reverse=True)
    start, size = int(query.get("cursor", ["0"])[0]), min(int(query.get("limit", ["1000"])[0]), hub.page)
    expand = query.get("expand", [])
    page = [_described(model, model.commit, expand) for model in models[start : start + size]]
    _page(handler, query, page, start + size, more=start + size < len(models))


def _page(handler: Handler, query: dict[str, list[str]], items: list[Any], cursor: int, *, more: bool) -> None:
    headers = {}
    if more:
        pairs = [(name, value) for name, values in query.items() if name != "cursor" for value in values]
        text = "&".join(f"{quote(name)}={quote(value)}" for name, value in [*pairs, ("cursor", str(cursor))])
        headers["Link"] = f'<{handler.server.hub.endpoint}{urlsplit(handler.path).path}?{text}>; rel="next"'
    handler.answer(200, json.dumps(items).encode(), **headers)


def _described(model: Model, commit: str, expand: list[str], *, blobs: bool = False) -> dict[str, Any]:
    card: dict[str, Any] = {"license": model.license}
    if model.license_name:
        card["license_name"] = model.license_name
    if model.license_link:
        card["license_link"] = model.license_link
    facts: dict[str, Any] = {
        "author": model.id.split("/")[0],
        "sha": commit,
        "lastModified": model.modified,
        "private": model.private,
        "gated": model.gated or False,
        "disabled": model.disabled,
        "downloads": model.downloads,
        "likes": model.likes,
        "trendingScore": model.trending,
        "tags": [*model.tags, f"license:{model.license}"],
        "cardData": card,
        "siblings": [_sibling(name, content, blobs) for name, content in model.revisions[commit].items()],
    }
    names = expand or facts
    return {"_id": commit[:24], "id": model.id, "modelId": model.id, **{name: facts[name] for name in names}}


def _sibling(name: str, content: Content, blobs: bool) -> dict[str, Any]:
    if not blobs:
        return {"rfilename": name}
    found: dict[str, Any] = {"rfilename": name, "size": content.size, "blobId": content.oid}
    if content.lfs:
        found["lfs"] = {"sha256": content.sha256, "size": content.size, "pointerSize": POINTER_BYTES}
    return found


def _information(handler: Handler, found: re.Match[str], query: dict[str, list[str]]) -> None:
    model = _model(handler, found["id"])
    commit, _ = _files(model, found["revision"] or "main")
    blobs = query.get("blobs", [""])[0] == "true"
    handler.answer(200, json.dumps(_described(model, commit, query.get("expand", []), blobs=blobs)).encode())


def _tree(handler: Handler, found: re.Match[str], query: dict[str, list[str]]) -> None:
    model = _model(handler, found["id"])
    _, files = _files(model, found["revision"])
    _check_gate(handler, model)
    folder = unquote(found["folder"] or "")
    recursive = query.get("recursive", [""])[0].lower() == "true"
    entries, folders = [], dict[str, None]()
    for name, content in sorted(files.items()):
        if folder and not name.startswith(f"{folder}/"):
            continue
        rest = name.removeprefix(f"{folder}/").split("/") if folder else name.split("/")
        folders.update(dict.fromkeys("/".join(rest[: count + 1]) for count in range(len(rest) - 1)))
        if recursive or len(rest) == 1:
            entries.append(_entry(name, content))
    entries += [{"type": "directory", "oid": "0" * 40, "size": 0, "path": name} for name in folders]
    start = int(query.get("cursor", ["0"])[0])
    stop = start + handler.server.hub.page
    _page(handler, query, entries[start:stop], stop, more=stop < len(entries))


def _entry(name: str, content: Content) -> dict[str, Any]:
    entry: dict[str, Any] = {"type": "file", "oid": content.oid, "size": content.size, "path": name}
    if content.lfs:
        entry["lfs"] = {"oid": content.sha256, "size": content.size, "pointerSize": POINTER_BYTES}
    return entry


def _check_gate(handler: Handler, model: Model) -> None:
    if not model.gated:
        return
    token = _token(handler)
    said = f"Access to model {model.id} is restricted"
    if token is None:
        raise Refused(401, "GatedRepo", f"{said}. You must have access to it and be authenticated to access it.")
    if token not in model.allowed:
        raise Refused(403, "GatedRepo", f"{said} and you are not in the authorized list.")


def _resolve(handler: Handler, found: re.Match[str], *, cached: bool) -> None:
    model = _model(handler, found["id"])
    commit, files = _files(model, found["revision"])
    content = files.get(unquote(found["file"]))
    if content is None:
        raise Refused(404, "EntryNotFound", "Entry not found")
    _check_gate(handler, model)
    hub, faults = handler.server.hub, handler.server.hub.faults
    headers = {"X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
    if not content.lfs:
        if cached:
            handler.answer_file(content, content.etag, X_Repo_Commit=commit)
            return
        # The hub sends small files itself, from an address that never changes its content.
        location = f"/api/resolve-cache/models/{model.id}/{commit}/{found['file']}"
        handler.answer(307, X_Repo_Commit=commit, Location=location)
        return
    headers["X-Linked-Size"] = str(content.size if faults.linked_size is None else faults.linked_size)
    etag = f'"{content.sha256}"' if faults.linked_etag is None else faults.linked_etag
    if etag:
        headers["X-Linked-Etag"] = etag
    handler.answer(302, Location=hub.signed(content), **headers)
