"""Where a Triton server listens."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ports:
    """The three ports of one server, all on loopback."""

    http: int
    grpc: int
    metrics: int


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """`host:port` of each front end, without a scheme, as the clients of Triton take them."""

    http_url: str
    grpc_url: str
    metrics_url: str


LOOPBACK = "127.0.0.1"


def loopback_address(ports: Ports) -> ServerAddress:
    """The address of a server that listens on these ports of this machine."""
    return ServerAddress(f"{LOOPBACK}:{ports.http}", f"{LOOPBACK}:{ports.grpc}", f"{LOOPBACK}:{ports.metrics}")
