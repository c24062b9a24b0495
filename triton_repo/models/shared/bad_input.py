"""The one error that a request can cause; its text goes to the client as it is."""


class BadInput(Exception):
    """The request cannot be served as it was sent."""
