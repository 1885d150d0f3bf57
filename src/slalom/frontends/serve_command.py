"""What is typed after `slalom serve` to a running server, until it is told to stop."""

from __future__ import annotations

import json
import os
import signal
import socket
from typing import Annotated, Any, Literal

import typer
from pydantic import ValidationError
from rich.console import Console

from slalom.errors import SlalomError
from slalom.frontends.options import takes
from slalom.frontends.ray_cluster import Cluster
from slalom.frontends.server.settings import ServeSpec, is_loopback
from slalom.frontends.specs import first_error

API_KEY = "SLALOM_API_KEY"
MISSING = "the server needs FastAPI, uvicorn and prometheus-client: pip install 'slalom[server]'"


@takes(ServeSpec)
def serve(
    runner: Annotated[Literal["local", "ray"], typer.Option(help="This process, or replicas on Ray Serve.")] = "local",
    replicas: Annotated[int, typer.Option(min=1, help="Ray: how many replicas, each with an LM of its own.")] = 1,
    cpus_per_replica: Annotated[float, typer.Option(min=0, help="Ray: CPUs each replica asks for.")] = 1,
    gpus_per_replica: Annotated[float, typer.Option(min=0, help="Ray: GPUs each replica asks for.")] = 0,
    ray_address: Annotated[
        str | None, typer.Option(help="Ray: a cluster's address; a cluster on this machine if left out.")
    ] = None,
    given: dict[str, Any] | None = None,
) -> None:
    """Serve steered texts by OpenAI's API, with a page to try it.

    Examples:

        slalom serve

        slalom serve --model ./my-llama --port 8080 --queue 64

        SLALOM_API_KEY=secret slalom serve --host 0.0.0.0

        slalom serve --allow-classifier tone=./my-tone-model --max-tokens 200 --max-seconds 60

        slalom serve --runner ray --replicas 4 --gpus-per-replica 1
    """
    settings = serve_spec(given or {})
    if runner == "ray":
        _serve_on_ray(settings, Cluster(replicas, cpus_per_replica, gpus_per_replica, ray_address))
    else:
        _serve_here(settings)


def _serve_here(settings: ServeSpec) -> None:
    """One LM in this process."""
    try:
        import uvicorn

        from slalom.frontends.server.app import make_app, start_log
    except ModuleNotFoundError as error:
        raise SlalomError(f"{MISSING} ({error.name} is missing)") from None

    from slalom.api import load
    from slalom.backbone.names import DEFAULT

    console = Console(stderr=True, highlight=False)
    with listening_socket(settings.host, settings.port) as bound:
        with console.status("loading"):
            lm = load(settings.model or DEFAULT, device=settings.device, dtype=settings.dtype, engine=settings.engine)
            app = make_app(lm, settings)
        start_log()
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=max(1, round(settings.grace)),
        )
        _announce(console, settings, app.state.service.name, *bound.getsockname()[:2])
        for stop in (signal.SIGTERM, signal.SIGINT):  # uvicorn raises them again when it is done: that is no error
            signal.signal(stop, lambda number, frame: None)
        uvicorn.Server(config).run(sockets=[bound])


def _serve_on_ray(settings: ServeSpec, cluster: Cluster) -> None:
    """Replicas on Ray Serve, whose proxy listens."""
    from slalom.backbone.names import DEFAULT
    from slalom.frontends.server.on_ray import serve_on_ray

    console = Console(stderr=True, highlight=False)
    with listening_socket(settings.host, settings.port) as bound:
        host, port = bound.getsockname()[:2]
    name = settings.served_name(settings.model or DEFAULT)
    serve_on_ray(settings, port, cluster, lambda: _announce(console, settings, name, host, port))


def serve_spec(given: dict[str, Any]) -> ServeSpec:
    """Checked settings; a key that was not typed comes from the environment."""
    key = os.environ.get(API_KEY)
    try:
        return ServeSpec.model_validate(({"api_key": key} if key else {}) | given)
    except ValidationError as error:
        raise SlalomError(first_error(error)) from None


def listening_socket(host: str, port: int) -> socket.socket:
    """A socket bound before the LM is loaded, so that a taken port is known at once; nobody can connect to it yet."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, kind)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        raise SlalomError(f"cannot listen on {host} port {port} ({error.strerror}); give another --port") from None
    return bound


def _announce(console: Console, settings: ServeSpec, name: str, host: str, port: int) -> None:
    """The address, a line to paste, and a warning if strangers may come."""
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    print(f"Slalom serves {name} at {url}", flush=True)
    key = " -H 'Authorization: Bearer KEY'" if settings.api_key else ""
    body = {"model": name, "prompt": "The soup", "slalom": {"keywords": ["spoon"]}}
    console.print(
        f"curl {url}/v1/completions{key} -H 'Content-Type: application/json' -d '{json.dumps(body)}'",
        soft_wrap=True,
        markup=False,
        style="dim",
    )
    if not settings.api_key and not is_loopback(host):
        console.print(
            f"[yellow]warning:[/yellow] {host} is open to other machines and no key is asked for; "
            f"set {API_KEY}, or leave --host out",
            soft_wrap=True,
        )
