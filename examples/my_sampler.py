"""A sampler of your own: commits what is far ahead of its runner-up."""

import dllm_decode.launch  # noqa: F401 - before torch is loaded

# isort: split
import argparse
from dataclasses import dataclass

from dllm_decode import decode, load_model
from eval.tasks import WordProblems
from samplers import Decision, Sampler, View
from samplers.logits.statistics import highest_one


@dataclass(frozen=True)
class MarginThreshold(Sampler[None]):
    """Commits every eligible position whose margin reaches `threshold`, and always the best."""

    threshold: float = 0.8

    def step(self, view: View, state: None) -> tuple[Decision, None]:
        ahead = view.eligible & (view.margin >= self.threshold)
        return Decision(commit=ahead | highest_one(view.margin, view.eligible)), None


def main() -> None:
    """Decodes one prompt."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--model", default="mini", help="embedded name, folder or hub id (default: mini)")
    (example,) = WordProblems().examples("test", 1)
    default = f"{example.prompt} answer :"
    add("--prompt", default=default, help="what is asked (default: a held-out word problem)")
    options = parser.parse_args()
    model, tokenizer = load_model(options.model)
    out = decode(model, [tokenizer.encode(options.prompt)], MarginThreshold(), gen_length=64)
    (answer,) = out.answers()
    print(tokenizer.decode(answer))
    print(f"{len(answer)} tokens in {out.forwards} forwards")


if __name__ == "__main__":
    main()
