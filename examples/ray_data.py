"""Answers a file of prompts on machines that come and go, with Ray Data (`ray[data]`).

Each line has a "text", a "seed" and an "id". An answer depends on its line alone, so that it is the
same after a restart, in another batch and on another machine. If the command is given again with
the same checkpoint, it goes on where it was stopped.
"""

import dllm_decode.launch  # noqa: F401 - before torch is loaded

# isort: split
import argparse
from typing import Any

from dllm_decode import generate, load_model


class Generate:
    """Answers batches of lines; each actor loads the model once.

    Args:
        model: Embedded name, folder or hub id.
        device: The actor's own device.
        options: Further arguments of `generate`.
    """

    def __init__(self, model: str, device: str, **options: Any) -> None:
        self.model, self.tokenizer = load_model(model, device=device)
        self.options = options

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Returns the columns of a batch and a column of answers."""
        texts, seeds = batch["text"].tolist(), batch["seed"].tolist()
        out = generate(self.model, self.tokenizer, texts, seeds=seeds, **self.options)
        return {**batch, "answer": out.texts}


def main() -> None:
    """Reads, answers and writes."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("input", help="file or folder of JSON lines")
    add("output", help="folder for the answers, in files of JSON lines")
    add("checkpoint", help="folder that all machines see; it holds the ids of answered lines")
    add("--model", default="mini", help="embedded name, folder or hub id (default: mini)")
    add("--num-actors", type=int, default=1, help="processes with a model each (default: 1)")
    add("--num-gpus", type=float, default=0, help="GPUs of an actor (default: 0)")
    add("--num-rows", type=int, default=8, help="answers decoded together (default: 8)")
    add("--gen-length", type=int, default=64, help="length of an answer (default: 64)")
    add("--temperature", type=float, default=0.0, help="temperature (default: 0)")
    options = parser.parse_args()

    import ray.data
    from ray.data.checkpoint import CheckpointConfig

    # Without a checkpoint a second run would write all answers again, next to the first ones.
    ray.data.DataContext.get_current().checkpoint_config = CheckpointConfig(
        "id", options.checkpoint, delete_checkpoint_on_success=False
    )
    answered = ray.data.read_json(options.input).map_batches(
        Generate,
        fn_constructor_kwargs={
            "model": options.model,
            "device": "cuda" if options.num_gpus else "cpu",
            "num_rows": options.num_rows,
            "gen_length": options.gen_length,
            "temperature": options.temperature,
        },
        # Rows stand still only at the end of a batch.
        batch_size=8 * options.num_rows,
        compute=ray.data.ActorPoolStrategy(
            size=options.num_actors, max_tasks_in_flight_per_actor=2
        ),
        num_gpus=options.num_gpus,
        max_restarts=-1,
        max_task_retries=-1,
    )
    answered.write_json(options.output)


if __name__ == "__main__":
    main()
