"""The other origin, where files' bytes come from: by signed URLs that expire, without any token."""

import hashlib
import time
from urllib.parse import parse_qs, urlsplit

from tests.registry.hub.serving import Handler

DENIED = b"<?xml version='1.0'?><Error><Code>AccessDenied</Code><Message>Request has expired</Message></Error>"


def signature(sha256: str, expires: int, generation: int) -> str:
    """What a URL is signed with."""
    return hashlib.sha256(f"{sha256} {expires} {generation}".encode()).hexdigest()


def route(handler: Handler) -> None:
    """Answer one request for a file."""
    hub, split = handler.server.hub, urlsplit(handler.path)
    sha256, query = split.path.rpartition("/")[2], parse_qs(split.query)
    expires, signed = int(query.get("Expires", ["0"])[0]), query.get("Signature", [""])[0]
    if signed != signature(sha256, expires, hub.faults.generation) or expires < time.time():
        handler.answer(403, DENIED, Content_Type="application/xml")
        return
    content = hub.catalog.contents[sha256]
    etag = content.etag if not hub.faults.etag else f'"{hub.faults.etag}-{content.sha256[:16]}"'
    handler.answer_file(hub.swaps.get(sha256, content), etag)
