"""A port for the ranks that a test starts."""
import socket


def held_port():
    """A port that is nobody else's while the socket is open. A store binds with SO_REUSEADDR, too, and nothing listens here."""
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("", 0))
    return held
