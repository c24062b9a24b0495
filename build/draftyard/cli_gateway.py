"""The words of the gateway, shared by the two commands that start one."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from draftyard.verbs.gateway import GatewayOptions


def add_gateway_words(command: argparse.ArgumentParser, prefix: str = "") -> None:
    """Where it listens, what it serves, who may ask, and how much; `prefix` for a command that has other ports too."""
    address = command.add_argument(f"--{prefix}host", default="127.0.0.1", dest="gateway_host")
    address.help = "address of the gateway (default: 127.0.0.1)"
    port = command.add_argument(f"--{prefix}port", type=_port, default=9000, dest="gateway_port")
    port.help = "port of the gateway, 0 for a free one (default: 9000)"
    command.add_argument(
        "--served-model-name", default="tensorrt_llm_bls", help="name that clients ask for (default: tensorrt_llm_bls)"
    )
    command.add_argument("--api-key-file", type=Path, help="file with the API keys, one a line; needed beyond loopback")
    command.add_argument("--max-in-flight", type=_least_one, default=64, help="requests at once (default: 64)")
    command.add_argument("--timeout-s", type=_seconds, default=300.0, help="seconds for one request (default: 300)")
    command.add_argument(
        "--drain-s", type=_seconds, default=30.0, help="seconds for running requests after SIGTERM (default: 30)"
    )
    command.add_argument(
        "--default-max-tokens", type=_least_one, default=256, help="where a request has none (default: 256)"
    )
    command.add_argument(
        "--max-tokens", type=_least_one, default=32768, help="most that a request may ask for (default: 32768)"
    )


def gateway_options(arguments: argparse.Namespace) -> "GatewayOptions":
    """The words as a value."""
    from draftyard.nouns.web import FrontLimits
    from draftyard.verbs.gateway import GatewayOptions

    limits = FrontLimits(
        max_in_flight=arguments.max_in_flight, timeout_s=arguments.timeout_s, drain_s=arguments.drain_s
    )
    return GatewayOptions(
        host=arguments.gateway_host,
        port=arguments.gateway_port,
        model=arguments.served_model_name,
        key_file=arguments.api_key_file,
        default_max_tokens=arguments.default_max_tokens,
        most_tokens=arguments.max_tokens,
        limits=limits,
    )


def gateway_command(arguments: argparse.Namespace, call: tuple[str, ...]) -> int:
    """`draftyard gateway`."""
    from draftyard.verbs.gateway import gateway

    return gateway(arguments.url, gateway_options(arguments))


def _port(text: str) -> int:
    number = int(text)
    if not 0 <= number <= 65535:
        raise argparse.ArgumentTypeError(f"{text} is no port")
    return number


def _least_one(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is below 1")
    return number


def _seconds(text: str) -> float:
    number = float(text)
    if not 0 < number < 1e6:
        raise argparse.ArgumentTypeError(f"{text} is no time above 0")
    return number
