"""The image's health check: whether the server in this container takes requests, as one line and an exit status."""

import http.client
import os
import sys


def main() -> int:
    """0 when `/readyz` answers 200."""
    connection = http.client.HTTPConnection("127.0.0.1", int(os.environ.get("FORGELM_PORT") or "8080"), timeout=4)
    try:
        connection.request("GET", "/readyz")
        answer = connection.getresponse()
        print(answer.read(4096).decode(errors="replace"))
    except (OSError, http.client.HTTPException) as error:
        print(f"no answer: {error}")
        return 1
    return 0 if answer.status == 200 else 1


if __name__ == "__main__":
    sys.exit(main())
