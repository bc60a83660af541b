"""The socket of the server; loads no torch, so that a port in use is refused at once."""

import socket

LOCAL = ("127.0.0.1", "localhost", "::1")
"""Names by which only this machine reaches the server."""


def bind(host: str, port: int) -> socket.socket:
    """Returns a socket that is bound, but does not listen yet; port 0 is any free port.

    Raises:
        OSError: If the address cannot be used.
    """
    bound: socket.socket | None = None
    try:
        kind, _, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        # asyncio lets connections send at once only if the protocol is named; each first chunk
        # would wait 40 ms for the client to acknowledge the header.
        bound = socket.socket(kind, socket.SOCK_STREAM, protocol)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        if bound is not None:
            bound.close()
        reason = error.strerror or "it cannot be used"
        raise OSError(f"The server cannot listen at {host}:{port}: {reason}.") from None
    return bound
