"""Replicas of the server as a Ray Serve deployment: pip install ".[ray]".

    python examples/ray_serve.py --num-replicas 2                  # the embedded model, on the CPU
    python examples/ray_serve.py --model GSAI-ML/LLaDA-8B-Instruct --device cuda --num-gpus 1

Each replica is an actor with a model and a batch of its own, and answers the same paths as
`dllm-decode serve`. Ray listens at 127.0.0.1 for requests unless `--host` says otherwise; its own
ports are open on all interfaces, so that it belongs on a network of its own.
"""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dllm_decode import DecodeConfig, load_model, new_decoder
from dllm_decode.serve.limits import Limits
from samplers import parse

if TYPE_CHECKING:
    from ray.serve import Application
    from starlette.types import ASGIApp


def build(options: argparse.Namespace) -> "ASGIApp":
    """Returns the server of one replica."""
    # Here and below: --help needs neither Ray nor the packages of the server.
    from dllm_decode.serve.api import create_app
    from dllm_decode.serve.server import LOCAL
    from dllm_decode.serve.service import Service

    model, tokenizer = load_model(options.model, device=options.device)
    limits = Limits(num_rows=options.num_rows)
    config = DecodeConfig(gen_length=limits.max_tokens)
    decoder = new_decoder(model, parse(options.sampler), config=config)
    name = Path(options.model).name
    service = Service.start(name, tokenizer, {"default": decoder}, limits)
    return create_app(service, is_local=options.host in LOCAL)


def deployment(options: argparse.Namespace) -> "Application":
    """Returns the application of all replicas."""
    from ray import serve

    # A deployment of Ray is a class; the ASGI app answers in its place.
    @serve.deployment(
        num_replicas=options.num_replicas,
        ray_actor_options={"num_cpus": options.num_cpus, "num_gpus": options.num_gpus},
        # More than rows, so that a free row never waits for the next request.
        max_ongoing_requests=2 * options.num_rows,
    )
    @serve.ingress(lambda: build(options))
    class Replica:
        pass

    return Replica.bind()


def main(words: Sequence[str] | None = None) -> None:
    """Serves until interrupted."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--model", default="mini", help="embedded name, folder or hub id (default: mini)")
    add("--device", default="cpu", help="of each replica (default: cpu)")
    add("--sampler", default="ConfidenceThreshold(0.9)", help="which positions to commit")
    add("--num-rows", type=int, default=8, help="of the batch of a replica (default: 8)")
    add("--num-replicas", type=int, default=2, help="(default: 2)")
    add("--num-cpus", type=float, default=0.5, help="of a replica (default: 0.5)")
    add("--num-gpus", type=float, default=0, help="of a replica (default: 0)")
    add("--host", default="127.0.0.1", help="where requests come in (default: 127.0.0.1)")
    add("--port", type=int, default=8000, help="where requests come in (default: 8000)")
    add("--address", help="of a running Ray; without one, Ray is started on this machine")
    options = parser.parse_args(words)
    try:
        import ray
        from ray import serve
    except ImportError:
        parser.error('Ray must be installed: pip install ".[ray]"')
    ray.init(options.address, include_dashboard=False if options.address is None else None)
    serve.start(http_options={"host": options.host, "port": options.port})
    try:
        serve.run(deployment(options))
        print(f"Listening at http://{options.host}:{options.port}. Ctrl-C ends it.", flush=True)
        while True:
            time.sleep(3600.0)
    except KeyboardInterrupt:
        print("Stopped.")
    finally:
        serve.shutdown()
        ray.shutdown()


if __name__ == "__main__":
    main()
